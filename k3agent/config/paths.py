"""Where k3agent keeps its configuration and its data, and where a repository keeps its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

REPOSITORY_FOLDER = ".k3agent"


def data_home(environ: Mapping[str, str]) -> Path:
    """`$K3AGENT_HOME`, else `$XDG_DATA_HOME/k3agent`, else `~/.local/share/k3agent`; it need not exist."""
    if environ.get("K3AGENT_HOME"):
        return Path(environ["K3AGENT_HOME"]).expanduser().absolute()
    base = environ.get("XDG_DATA_HOME")
    # The specification of these variables says that relative paths are to be ignored.
    return (Path(base) if base and Path(base).is_absolute() else _home(environ) / ".local/share") / "k3agent"


def user_config(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base and Path(base).is_absolute() else _home(environ) / ".config"
    return folder / "k3agent" / "config.toml"


def prefix_cache(environ: Mapping[str, str]) -> Path:
    """Where local servers keep prefixes unless told otherwise. The same rule stands in the backend, which
    imports nothing from here.
    """
    base = environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base and Path(base).is_absolute() else _home(environ) / ".cache"
    return folder / "k3agent" / "prefixes"


def git_root(cwd: Path) -> Path | None:
    """The nearest folder at or above `cwd` with a `.git` (a file in worktrees)."""
    return next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), None)


def repository_root(cwd: Path) -> Path:
    """The same, else `cwd` itself."""
    return git_root(cwd) or cwd


def repository_configs(cwd: Path) -> tuple[Path, Path] | None:
    """(config.toml, config.local.toml) of the nearest folder with a `.k3agent`, at most up to the repository
    root; None without one. Either file may be missing.
    """
    root = repository_root(cwd)
    for folder in (cwd, *cwd.parents):
        place = folder / REPOSITORY_FOLDER
        if (place / "config.toml").is_file() or (place / "config.local.toml").is_file():
            return place / "config.toml", place / "config.local.toml"
        if folder == root:
            return None
    return None


def repository_folder(cwd: Path) -> Path | None:
    """The nearest `.k3agent` folder, at most up to the repository root."""
    root = repository_root(cwd)
    for folder in (cwd, *cwd.parents):
        if (folder / REPOSITORY_FOLDER).is_dir():
            return folder / REPOSITORY_FOLDER
        if folder == root:
            return None
    return None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
