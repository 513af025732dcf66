"""What a command may touch: the folders it may write, what is protected inside them, what is hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.tools.support.usage import Limits

# What runs later, outside of the sandbox, when a person or a server next comes along.
PROTECTED = (
    *(".envrc", ".k3agent", ".github/workflows", ".github/actions", ".gitlab-ci.yml", ".circleci"),
    *("azure-pipelines.yml", "Jenkinsfile", ".travis.yml", ".drone.yml", ".woodpecker", ".buildkite"),
    *("bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".cirrus.yml", "cloudbuild.yaml"),
    *(".gitea/workflows", ".forgejo/workflows", ".pre-commit-config.yaml", ".husky", "lefthook.yml"),
    *(".vscode", ".idea", ".devcontainer", ".devcontainer.json", ".nvim.lua", ".nvimrc", ".exrc", ".vimrc"),
    *(".dir-locals.el", ".gdbinit", ".lldbinit", "mise.toml", ".mise.toml", ".autoenv", ".autoenv.zsh"),
    *(".claude", ".mcp.json", ".cursor", ".gemini", ".codex"),
)
PROTECTED_GIT = ("hooks", "config", "config.worktree", "commondir", "gitdir")
PROTECTED_HOME = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc"),
    *(".zshenv", ".zprofile", ".zlogin", ".config/fish", ".inputrc", ".tmux.conf", ".screenrc", ".xprofile"),
    *(".gitconfig", ".config/git", ".config/autostart", ".config/systemd", ".config/k3agent"),
    *(".local/bin", "bin", ".local/share/applications", ".config/direnv", ".npmrc", ".cargo/config.toml"),
    *(".vimrc", ".vim", ".config/nvim", ".emacs", ".emacs.d", ".config/Code", ".pythonrc.py", ".curlrc"),
    *(".local/lib", ".ssh", ".docker", ".pam_environment"),
)
SECRETS = (
    *(".ssh", ".aws", ".gnupg", ".kube", ".azure", ".config/gcloud", ".config/gh", ".config/glab-cli"),
    *(".docker", ".netrc", ".git-credentials", ".config/git/credentials", ".pypirc", ".config/op"),
    *(".local/share/keyrings", ".password-store", ".config/rclone", ".terraform.d/credentials.tfrc.json"),
    *(".npmrc", ".yarnrc.yml", ".cargo/credentials.toml", ".cargo/credentials", ".gem/credentials"),
    *(".config/pip", ".pip", ".m2/settings.xml", ".m2/settings-security.xml", ".vault-token", ".boto"),
    *(".s3cfg", ".pgpass", ".my.cnf", ".config/doctl", ".config/hub", ".cache/huggingface/token"),
    *(".bash_history", ".zsh_history", ".python_history", ".node_repl_history", ".psql_history"),
    *(".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware"),
    *(
        ".local/share/fish/fish_history",
        ".mysql_history",
        ".sqlite_history",
        ".rediscli_history",
        ".irb_history",
    ),
    *(
        "snap/firefox",
        "snap/chromium",
        ".var/app",
        ".config/microsoft-edge",
        ".config/vivaldi",
        ".config/opera",
    ),
    *(".claude.json", ".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json"),
    *(
        ".local/share/opencode/auth.json",
        ".config/github-copilot",
        ".config/heroku",
        ".config/stripe",
        ".fly",
    ),
    *(".config/Signal", ".config/Slack", ".config/1Password", ".1password", ".config/sops", ".config/age"),
)
SYSTEM_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d")
# Doors to programs that work with other rights: sockets can be used without writing a file.
SOCKETS = (
    *("/run/docker.sock", "/run/containerd", "/run/podman", "/run/crio", "/run/dbus", "/run/user"),
    *("/run/systemd/private", "/run/systemd/notify", "/run/snapd.socket", "/run/libvirt", "/run/lxd"),
    "/run/k3s",
)
MAX_MODULE_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All paths are absolute and exist. `pinned` folders lie between a writable folder and what is protected
    in it: they can be written but not moved away.
    """

    writable: tuple[Path, ...]
    readable: tuple[Path, ...]
    protected: tuple[Path, ...]
    pinned: tuple[Path, ...]
    hidden: tuple[Path, ...]

    def may_write(self, path: Path) -> bool:
        return _is_below(path, self.writable) and not _is_below(path, self.protected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What of a policy does not change with the command. `private` is hidden, for example the agent's store;
    `readable` are folders in it, or in /tmp, that may be read all the same; `home` is the user's. `own` are
    programs of the agent, which must not change although they lie in the workspace. `limits`:
    None for those that fit the machine. `hosts`: what commands may reach although the network is off.
    """

    home: Path
    private: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()
    limits: Limits | None = None
    hosts: tuple[str, ...] = ()

    def policy(self, writable: Sequence[Path], git_folders: Sequence[Path]) -> Policy:
        roots = tuple(dict.fromkeys(path for path in (*writable, *git_folders) if path.is_dir()))
        protected = list(dict.fromkeys(_protected(roots, git_folders, self.home)))
        protected += [path for path in self.own if _is_below(path, roots) and path not in roots]
        pinned = {
            folder
            for path in protected
            for folder in path.parents
            if _is_below(folder, roots) and folder not in roots
        }
        secrets = [self.home / name for name in SECRETS]
        hidden = [*secrets, *map(Path, (*SYSTEM_SECRETS, *SOCKETS)), *self.private]
        hidden += [path for path in bound_sockets() if not _is_below(path, (*roots, *hidden, Path("/tmp")))]
        return Policy(
            writable=roots,
            readable=tuple(path for path in self.readable if path.is_dir() and not _is_below(path, roots)),
            protected=tuple(protected),
            pinned=tuple(sorted(pinned)),
            hidden=tuple(dict.fromkeys(path for path in hidden if path.exists() and path not in roots)),
        )


def bound_sockets() -> list[Path]:
    """Sockets of running programs that have a path. Even in a read-only folder one could connect to them."""
    try:
        rows = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines()[1:]
    except OSError:
        return []
    names = {row.split(maxsplit=7)[7] for row in rows if row.count(" /")}
    return sorted(path for path in map(Path, names) if _is_socket(path))


def _is_socket(path: Path) -> bool:
    try:
        return path.is_absolute() and path.resolve() == path and path.is_socket()
    except OSError:
        return False


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    # Many are asked for every command, and `Path.is_relative_to` is slow.
    text = str(path)
    return any(text == (folder := str(each)) or text.startswith(folder.rstrip("/") + "/") for each in folders)


def _protected(roots: Sequence[Path], git_folders: Sequence[Path], home: Path) -> list[Path]:
    found: list[Path] = []
    for root in roots:
        found += _existing(root, PROTECTED)
        git = root / ".git"
        if git.is_dir() and not git.is_symlink():
            found += _protected_in_git(git)
        else:
            found += _existing(root, (".git",))
    for folder in git_folders:
        found += _protected_in_git(folder)
        if any(other.parent == folder / "worktrees" for other in git_folders):
            # The repository of a linked work tree: what its main work tree has checked out stays.
            found += _existing(folder, ("HEAD", "index"))
    if _is_below(home, roots):
        found += _existing(home, PROTECTED_HOME)
    else:
        found += [path for path in _existing(home, PROTECTED_HOME) if _is_below(path, roots)]
    return found


def _existing(folder: Path, names: Iterable[str]) -> list[Path]:
    """A link is left out: nothing can be mounted over it, only over what it leads to."""
    paths = (folder / name for name in names)
    return [path for path in paths if path.exists() and path.resolve() == path]


def _protected_in_git(git: Path, depth: int = 0) -> list[Path]:
    """Also in the folders that submodules have inside `git`; their names may have several parts."""
    found = _existing(git, PROTECTED_GIT)
    modules = git / "modules" if depth == 0 else git
    if depth < MAX_MODULE_DEPTH and modules.is_dir():
        for path in sorted(modules.iterdir()):
            if path.is_dir() and not path.is_symlink() and path.name not in ("objects", "refs", "logs"):
                found += _protected_in_git(path, depth + 1 if depth else 1)
    return found


def git_folders(cwd: Path) -> tuple[Path, ...]:
    """The real git folders of the work tree around `cwd` that lie outside of it: those of a linked work tree,
    a submodule, or a repository that `cwd` is a folder of.

    They are what `git rev-parse --git-dir --git-common-dir` prints, read without running git in a folder that
    may be hostile. A `.git` file is believed only where the folder it names knows of this work tree.
    """
    for folder in (cwd, *cwd.parents):
        git = folder / ".git"
        if git.is_dir():
            found = [git.resolve()]
        elif git.is_file():
            found = _linked(git)
        else:
            continue
        return tuple(path for path in found if not _is_below(path, (cwd,)))
    return ()


def _linked(file: Path) -> list[Path]:
    text = _first_line(file)
    if not text.startswith("gitdir:"):
        return []
    folder = (file.parent / text.removeprefix("gitdir:").strip()).resolve()
    common = _first_line(folder / "commondir")
    if common:
        back = _first_line(folder / "gitdir")
        if not back or (folder / back).resolve() != file.resolve():
            return []
        return [(folder / common).resolve(), folder]
    tree = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", _text(folder / "config"), re.MULTILINE)
    if tree and (folder / tree[1].strip('"')).resolve() == file.parent.resolve():
        return [folder]
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def _first_line(path: Path) -> str:
    return _text(path).partition("\n")[0].strip()
