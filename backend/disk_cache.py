"""Where prefixes and the tokens of answers outlive the server: one private folder with a quota."""

import os
from dataclasses import dataclass
from pathlib import Path

from k3agent.backend.errors import BackendError

OFF = "off"


@dataclass(frozen=True, slots=True)
class DiskCache:
    """The folder. It holds what was said, in a form that only needs the model's vocabulary to be read."""

    folder: Path
    quota_bytes: int

    @classmethod
    def of_flag(cls, given: str | None, quota_bytes: int) -> "DiskCache | None":
        """The folder of `--disk-cache`, made if need be; None for `off` or a quota of 0.

        A default folder that cannot be made only costs the cache; a given one is an error.
        """
        if given == OFF or quota_bytes == 0:
            return None
        if given is not None:
            folder = Path(given).expanduser().absolute()
            try:
                return cls(_made(folder), quota_bytes)
            except OSError as error:
                raise BackendError(
                    f"--disk-cache {given}: {error.strerror}; give a folder that can be written, or off"
                ) from error
        try:
            return cls(_made(default_folder()), quota_bytes)
        except (OSError, RuntimeError):
            return None

    @property
    def prefixes_dir(self) -> Path:
        return self.folder / "states"

    @property
    def answers_file(self) -> Path:
        return self.folder / "answers.bin"


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/k3agent/prefixes`, else `~/.cache/k3agent/prefixes`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "k3agent" / "prefixes"


def kernels_folder() -> Path:
    """Beside the prefixes: kernels compiled for this machine's GPU."""
    return default_folder().with_name("kernels")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13))
    return folder
