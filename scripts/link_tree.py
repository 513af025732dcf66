"""Builds `build/tree/k3agent`: the import layout as links, for type checkers, IDEs and in-place test runs.

The repository keeps `backend/`, `tools/` and `prompts/` at the top level; they are imported as
`k3agent.<name>`. With `--site` the Python that runs this also looks there, by a file in its site-packages: an
editable installation alone is not found from a folder that holds a folder `k3agent`, like that of a clone.
"""

import sys
import sysconfig
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


def add_to_site(folder: Path) -> None:
    (folder / "k3agent-tree.pth").write_text(f"{TREE.parent}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
    if "--site" in sys.argv[1:]:
        add_to_site(Path(sysconfig.get_path("purelib")))
