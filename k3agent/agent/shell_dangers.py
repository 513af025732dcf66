"""What is dangerous enough in a shell command to be asked about in every mode, and why."""

from __future__ import annotations

import re

from k3agent.agent import git_rules, program_rules
from k3agent.agent.permissions import Territory
from k3agent.agent.program_rules import asks_version, runs_text
from k3agent.agent.shell_places import Places
from k3agent.agent.shell_programs import (
    CONTAINER_READERS,
    CONTAINERS,
    DANGEROUS_ENV,
    INTERPRETERS,
    NETWORK,
    PRIVILEGED,
    PUBLISH,
    READERS,
    SETTERS,
    SYSTEM,
    names,
)
from k3agent.agent.shell_syntax import FOUND, SHELLS, SimpleCommand
from k3agent.safety.paths import exists

AWKS = names("awk gawk mawk nawk")
AWK_ACTS = re.compile(r'\bsystem\s*\(|print[^;}]*[>|]\s*"|"\s*\|\s*getline')


class Dangers:
    """Finds what one simple command endangers, in the places that it names."""

    def __init__(self, territory: Territory, places: Places) -> None:
        self._territory = territory
        self._places = places

    def of(self, simple: SimpleCommand, program: str) -> str | None:
        """Why even `auto` asks, or None."""
        named = simple.words[1:] if program in SETTERS else ()
        for name in (*simple.env, *named):
            if name in DANGEROUS_ENV:
                return f"it changes {name}, and so what other programs run"
        if program in PRIVILEGED:
            return "it asks for other rights"
        if program in SYSTEM or program.startswith("mkfs."):
            return "it acts on the whole system"
        if program in INTERPRETERS and any(name in ("curl", "wget") for name in simple.feeders):
            return "it runs what came from the network"
        if program in SHELLS and simple.is_fed and not runs_text(simple.words[1:]):
            return "it runs a text that was not looked at"
        reaching = self._elsewhere(simple, program)
        if reaching is not None:
            return reaching
        if program == "rm":
            return self._of_rm(simple)
        if program == "find":
            return self._of_find(simple)
        if program == "git":
            return git_rules.danger(simple, self._names_file)
        if program == "kill" and "-1" in simple.words[2:]:
            return "it ends every process"
        return None

    def _elsewhere(self, simple: SimpleCommand, program: str) -> str | None:
        """Why a command that reaches beyond this machine, or beyond its files, is asked about."""
        if program in NETWORK and asks_version(simple.words[1:]):
            return None
        if program in NETWORK and not program_rules.reaches_only(simple, self._territory.hosts):
            return "it talks to the network"
        if program in CONTAINERS and not self._looks_into_containers(simple):
            return "what runs in a container or cluster is not held in the workspace"
        if program in PUBLISH and (not PUBLISH[program] or PUBLISH[program] in simple.words):
            return "it publishes something"
        if program in AWKS and any(AWK_ACTS.search(word or "") for word in simple.words):
            return "its awk program writes files or runs commands"
        return program_rules.danger(simple)

    def _looks_into_containers(self, simple: SimpleCommand) -> bool:
        return len(simple.words) > 1 and simple.words[1] in CONTAINER_READERS

    def _of_rm(self, simple: SimpleCommand) -> str | None:
        options = [word for word in simple.words[1:] if isinstance(word, str) and word.startswith("-")]
        targets = [word for word in simple.words[1:] if word is None or not word.startswith("-")]
        recursive = any(
            re.fullmatch(r"-[a-zA-Z]*[rR][a-zA-Z]*", word)
            or (len(word) > 3 and "--recursive".startswith(word))
            for word in options
        )
        # What `find` has found lies below where it starts, which is judged with `find` itself.
        if not recursive and targets == [None] and simple.feeders == FOUND:
            return None
        for target in targets:
            if target is None:
                return "what it removes is known only at run time"
            paths = self._places.resolve(target)
            for path in [*paths, *self._places.resolve(target.rstrip("*"))] if recursive else paths:
                if not self._territory.is_open_to_commands(path):
                    return f"it removes {path}, which is outside the workspace"
                if not recursive:
                    continue
                if self._territory.is_root(path):
                    return "it removes the whole workspace"
                if ".git" in path.parts:
                    return "it removes the repository's history"
        return None

    def _starts_outside(self, simple: SimpleCommand) -> str | None:
        for word in simple.words[1:]:
            if word is None:
                return "where it changes files is known only at run time"
            if word.startswith(("-", "(", "!")):
                break
            if any(not self._territory.is_open_to_commands(path) for path in self._places.resolve(word)):
                return f"it deletes or changes files below {word}, outside the workspace"
        return None

    def _of_find(self, simple: SimpleCommand) -> str | None:
        removes = "-delete" in simple.words or program_rules.find_removes(simple.words)
        if not removes and not program_rules.find_changes(simple.words, READERS):
            return None
        outside = self._starts_outside(simple)
        if outside is not None or not removes:
            return outside
        if not any(isinstance(word, str) and word in ("-name", "-path", "-iname") for word in simple.words):
            return "it deletes everything that it finds"
        return None

    def _names_file(self, texts: list[str]) -> bool:
        """`git checkout FILE` without `--`: a word that is a file here, unless a new branch is made."""
        if any(text in ("-b", "-B", "--orphan") for text in texts):
            return False
        return any(
            text in (".", "*") or any(map(exists, self._places.resolve(text)))
            for text in texts
            if text and not text.startswith("-")
        )
