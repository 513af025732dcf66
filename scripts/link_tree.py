"""Builds `build/tree/k3agent`: the import layout as links, for type checkers, IDEs and in-place test runs.

The repository keeps `backend/`, `tools/` and `prompts/` at the top level; they are imported as
`k3agent.<name>`.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "tree" / "k3agent"
TOP_LEVEL = ("backend", "prompts", "tools")


def link(name: Path, target: Path) -> None:
    """Make `name` a link to `target`, replacing an older link."""
    if name.is_symlink():
        name.unlink()
    name.symlink_to(target, target_is_directory=target.is_dir())


def main() -> None:
    TREE.mkdir(parents=True, exist_ok=True)
    wanted = {item.name: item for item in (ROOT / "k3agent").iterdir() if item.name != "__pycache__"}
    wanted |= {name: ROOT / name for name in TOP_LEVEL}
    for old in TREE.iterdir():
        if old.is_symlink() and old.name not in wanted:
            old.unlink()
    for name, target in wanted.items():
        link(TREE / name, target)


if __name__ == "__main__":
    main()
