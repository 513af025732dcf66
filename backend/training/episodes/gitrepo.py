"""Real git repositories for episodes: a history whose last step the project's files go beyond, and questions
that checkers put to it.
"""

import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.backend.training.episodes.openwords import open_word
from k3agent.backend.training.episodes.words import Words

BRANCHES = ("main", "main", "master", "develop", "trunk")
NAMES = ("Ana", "Ben", "Chen Li", "Dana Roth", "Emil", "Fatima Noor", "Grace Hu", "Jonas", "Mia", "Oleg")
ENVIRON = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


@dataclass(slots=True)
class Commit:
    """A commit: its subject, and the files that it leaves otherwise than they are now (None: not there)."""

    subject: str
    files: dict[str, str | None] = field(default_factory=dict)
    author: str = ""
    """Who made it, if not the repository's author."""


@dataclass(slots=True)
class Repository:
    """What is to be made of a project's folder; the files themselves stay as they are."""

    branch: str
    commits: list[Commit]
    author: str = "Ana"
    branches: list[str] = field(default_factory=list)

    def build(self, root: str) -> None:
        """Make the history in a folder; at the end the files are as they were."""
        now = {path: _read(root, path) for commit in self.commits for path in commit.files}
        git(root, "init", "-q", "--template=", "-b", self.branch)
        with Path(root, ".git", "config").open("a", encoding="utf-8") as file:
            user = f"[user]\n\tname = {self.author}\n\temail = {_mail(self.author)}\n"
            file.write(f"{user}[core]\n\thooksPath = /dev/null\n")
        for number, commit in enumerate(self.commits):
            for path, text in commit.files.items():
                _write(root, path, text)
            git(root, "add", "-A")
            made_by = [f"--author={commit.author} <{_mail(commit.author)}>"] if commit.author else []
            git(root, "commit", "-q", "--allow-empty", "-m", commit.subject, *made_by, day=number)
        for path, text in now.items():
            _write(root, path, text)
        for name in self.branches:
            git(root, "branch", name)


def _mail(name: str) -> str:
    return f"{name.split()[0].lower()}@example.com"


def _read(root: str, path: str) -> str | None:
    full = Path(root, path)
    return full.read_bytes().decode("utf-8", "surrogateescape") if full.is_file() else None


def _write(root: str, path: str, text: str | None) -> None:
    full = Path(root, path)
    if text is None:
        full.unlink(missing_ok=True)
        return
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(text.encode("utf-8", "surrogateescape"))


def git(root: str, *args: str, day: int = 0) -> str:
    """Run git in a folder; what it prints. '' where it fails."""
    date = f"2026-03-{1 + day:02}T10:00:00"
    done = subprocess.run(
        ["git", *args],
        cwd=root,
        env={**ENVIRON, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def subject(rng: random.Random, words: Words) -> str:
    """A commit's subject as people write it."""
    verb, noun, adjective = words.verb(), words.noun(), words.adjective()
    text = rng.choice(
        (
            f"{verb.capitalize()} the {noun}",
            f"{verb} {adjective} {noun}",
            f"Add {noun} to {words.noun()}",
            f"Fix {adjective} {noun}",
            f"fix: {noun} of {words.noun()}",
            f"feat: {verb} {noun}",
            f"feat({noun}): {adjective} {words.noun()}",
            f"chore: bump {noun} to {rng.randint(0, 9)}.{rng.randint(0, 20)}",
            f"docs: {noun}",
            f"Update {noun}.md",
            f"Remove unused {noun}",
            f"{noun.capitalize()}: {verb} {words.noun()}",
            f"{noun.upper()}-{rng.randint(1, 999)}: {verb} {words.noun()}",
            f"Merge {noun} and {words.noun()}",
            f"wip {noun}",
            words.phrase(),
        )
    )
    return text.replace('"', "").replace("`", "").strip()


def branch_name(rng: random.Random, words: Words) -> str:
    """A branch's name as people choose it."""
    noun = words.noun() if rng.random() < 0.6 else open_word(rng, words.held_out)
    return rng.choice(
        (
            f"feature/{words.verb()}-{noun}",
            f"fix/{noun}",
            f"{noun}-{words.noun()}",
            f"bugfix/{noun}_{words.noun()}",
            f"release/{rng.randint(0, 9)}.{rng.randint(0, 20)}",
            f"{noun}",
            f"{noun}-v{rng.randint(2, 9)}",
            f"issue-{rng.randint(1, 999)}",
            f"{words.noun()}/{noun}-{rng.randint(1, 99)}",
            f"hotfix-{noun}",
        )
    )
