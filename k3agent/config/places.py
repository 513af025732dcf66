"""Where hooks, commands and skills may lie: the user's folders, and the repository's once it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k3agent.config.paths import REPOSITORY_FOLDER, data_home, repository_folder, repository_root, user_config

# What other agents use; what lies there counts where k3agent's own folder has nothing of that name.
FOREIGN = ".claude"
NAMES = ("hooks.json", "commands", "skills")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders in which extensions are looked for; of two with one name the later one counts. `untrusted`:
    what a repository has, but may not use.
    """

    folders: tuple[Path, ...] = ()
    untrusted: tuple[Path, ...] = ()

    def find(self, name: str) -> list[Path]:
        """The files or folders of this name that may be used."""
        return [folder / name for folder in self.folders if (folder / name).exists()]


def trust_folder(cwd: Path) -> Path:
    """The folder that trust is about: the nearest `.k3agent`, also where only other agents' folders are."""
    return repository_folder(cwd) or repository_root(cwd) / REPOSITORY_FOLDER


def find_places(cwd: Path, environ: Mapping[str, str], home: Path | None = None) -> Places:
    """`home`: the data folder, which knows what is trusted, if not the usual one."""
    user = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    own = (user / FOREIGN, user_config(environ).parent)
    folder = trust_folder(cwd)
    theirs = (folder.parent / FOREIGN, folder)
    present = tuple(
        place / name
        for place in theirs
        for name in NAMES
        if place not in own and (place == folder or name != "hooks.json") and (place / name).exists()
    )
    if not present:
        return Places(folders=own)
    from k3agent.config.trust import is_trusted  # lazy: hashlib and json, only where there is something

    if is_trusted(home or data_home(environ), folder):
        return Places(folders=(*own, *theirs))
    return Places(folders=own, untrusted=present)
