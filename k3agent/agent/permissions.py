"""May this call run? Modes and rules over what a call would touch: allow, ask or deny, always with a reason.

Order: deny rules, protected places, allow rules, the mode. A shell command is taken apart and each simple
command judged by itself; the strictest verdict holds for the whole. The model's words play no part, only
the `Access`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.errors import ConfigError
from k3agent.safety.secretfiles import is_secret_file

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Access


class Mode(StrEnum):
    PLAN = "plan"
    DEFAULT = "default"
    ACCEPT_EDITS = "accept-edits"
    AUTO = "auto"


class Action(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


# A tool that does what others do is judged by their rules, too: what it writes, what it runs.
WRITES_AS = {"try": "edit"}
RUNS_AS = {"try": "shell"}
STRICTNESS = {Action.ALLOW: 0, Action.ASK: 1, Action.DENY: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`by`: rule, mode or protection; `reason` is written for people and for the model."""

    action: Action
    reason: str
    by: str


def strictest(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: STRICTNESS[verdict.action])


@dataclass(frozen=True, slots=True)
class Rule:
    """`tool` alone, `tool(prefix:*)`, `tool(exact text)` or `tool(glob)`; `text` is the rule as it was
    written.
    """

    tool: str
    pattern: str | None
    text: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        match = re.fullmatch(r"\s*([A-Za-z_*][\w*-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
        if match is None:
            raise ConfigError(
                f"permission rule {text!r} is not understood; write it like 'shell(git status:*)'"
            )
        return cls(match.group(1), match.group(2) or None, text.strip())

    def fits_tool(self, *names: str) -> bool:
        return any(fnmatch.fnmatchcase(name, self.tool) for name in names)

    def fits_command(self, command: str) -> bool:
        """`prefix:*` fits the words themselves and longer commands, never a longer first word."""
        if self.pattern is None:
            return True
        if self.pattern.endswith(":*"):
            prefix = " ".join(self.pattern[:-2].split())
            return command == prefix or command.startswith(prefix + " ")
        return fnmatch.fnmatchcase(command, " ".join(self.pattern.split()))

    def fits_path(self, path: Path, cwd: Path) -> bool:
        """Patterns are relative to the workspace, or absolute. `*` stays within a folder, `**` does not."""
        if self.pattern is None:
            return True
        pattern = self.pattern
        if pattern.endswith(":*"):
            pattern = pattern[:-2] + "**"
        text = str(path)
        if not pattern.startswith(("/", "**")):
            if not path.is_relative_to(cwd):
                return False
            text = str(path.relative_to(cwd))
        return re.fullmatch(_glob_regex(pattern.removeprefix("./")), text) is not None


def _glob_regex(pattern: str) -> str:
    parts: list[str] = []
    index = 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            parts.append("(?:.*/)?")
            index += 3
        elif pattern.startswith("**", index):
            parts.append(".*")
            index += 2
        elif pattern[index] == "*":
            parts.append("[^/]*")
            index += 1
        elif pattern[index] == "?":
            parts.append("[^/]")
            index += 1
        else:
            parts.append(re.escape(pattern[index]))
            index += 1
    return "(?s:" + "".join(parts) + ")"


def check_rules(mode: str, rules: tuple[str, ...]) -> None:
    """Raises ConfigError for an unknown mode or a rule that is not understood."""
    if mode not in tuple(Mode):
        raise ConfigError(f"permission mode {mode!r} is unknown; choose one of {', '.join(Mode)}")
    for rule in rules:
        Rule.parse(rule)


class Territory:
    """Which places are the workspace's, which are protected, which are outside. All paths absolute and
    resolved.
    """

    def __init__(
        self,
        *,
        cwd: Path,
        extra_dirs: tuple[Path, ...],
        home: Path,
        environ: Mapping[str, str],
        readable: tuple[Path, ...],
        walls: tuple[Path, ...] = (),
        rules_root: Path | None = None,
        checked: Collection[Path] = (),
        scratch: tuple[Path, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> None:
        """`walls`: the workspace that a subagent works for; with them nothing outside of `cwd` may be
        written, whatever rules and people say. `rules_root`: the folder that patterns of rules are relative
        to, if not `cwd`. `checked`: files that checks are made of. `scratch`: folders that the sandbox makes
        private for commands; `hosts`: those that it lets them reach.
        """
        from k3agent.tools.sandbox.policy import SECRETS  # lazy: tools bring pydantic, 0.1 s

        self.hosts = hosts
        self._scratch = scratch
        self.cwd = cwd
        self.rules_root = rules_root or cwd
        self.is_fenced = bool(walls)
        self._walls = walls
        self.roots = (cwd, *(folder.resolve() for folder in extra_dirs))
        self._data = home.resolve()
        # A folder of the workspace may be the root of a subagent, and what is protected there stays so.
        around = () if cwd.is_relative_to(self._data) else walls
        self._marked = tuple(dict.fromkeys((*self.roots, *around, self.rules_root)))
        self._checked = checked
        self._readable = tuple(folder.resolve() for folder in readable)
        user_home = environ.get("HOME")
        self.user_home = Path(user_home).resolve() if user_home else None
        home_folder = self.user_home
        self._secret = frozenset(home_folder / name for name in SECRETS) if home_folder else frozenset[Path]()

    def is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)

    def is_open_to_commands(self, path: Path) -> bool:
        """Inside, or in a folder that the sandbox makes private for commands."""
        if self.is_inside(path) or any(path.is_relative_to(folder) for folder in self._walls):
            return self.is_inside(path)
        return any(path.is_relative_to(folder) for folder in self._scratch)

    def is_readable(self, path: Path) -> bool:
        """Inside, or a full output of this session."""
        return self.is_inside(path) or any(path.is_relative_to(folder) for folder in self._readable)

    def is_root(self, path: Path) -> bool:
        return path in self.roots

    def protected(self, path: Path, *, is_write: bool) -> str | None:
        """Why nobody may go there without being asked, or None."""
        if not self._secret.isdisjoint((path, *path.parents)):
            return f"{path} holds the user's secrets"
        # A workspace that lies inside the data folder (a throw-away one) is still a workspace.
        is_data = path.is_relative_to(self._data)
        if is_data and not (self.cwd.is_relative_to(self._data) and path.is_relative_to(self.cwd)):
            if not is_write and self.is_readable(path):
                return None
            return f"{path} is k3agent's own data"
        if is_write:
            if path in self._checked:
                return f"{path} is part of a check, which may not be changed to pass it (checks.protect)"
            for root in self._marked:
                if path.is_relative_to(root):
                    for name in path.relative_to(root).parts:
                        # Some file systems take `.GIT` for `.git`.
                        if name.casefold() in (".git", ".k3agent"):
                            return f"{path} lies in the protected folder {name}"
        return None

    def secret(self, path: Path) -> str | None:
        """Why its content is not shown or changed unless a rule allows it, or None."""
        if not is_secret_file(path.name):
            return None
        return f"{self.shown(path)} is a file for secrets; only the user, or a rule for it, may allow that"

    def runs_later(self, path: Path, *, is_all: bool = False) -> str | None:
        """Why writing there is asked about unless a rule allows it, or None. `is_all`: there and below."""
        from k3agent.tools.sandbox.policy import PROTECTED  # lazy: tools bring pydantic, 0.1 s

        for root in self._marked:
            if path.is_relative_to(root):
                inner = str(path.relative_to(root)).casefold()
                for name in map(str.casefold, PROTECTED):
                    if (
                        inner == name
                        or inner.startswith(name + "/")
                        or (is_all and name.startswith(inner + "/"))
                    ):
                        return f"{path} can make programs run later, outside of the sandbox"
        return None

    def shown(self, path: Path) -> str:
        return str(path.relative_to(self.cwd)) if path.is_relative_to(self.cwd) else str(path)


class Permissions:
    """The rules and the mode of one session."""

    def __init__(
        self, *, mode: str, allow: tuple[str, ...], deny: tuple[str, ...], territory: Territory
    ) -> None:
        check_rules(mode, (*allow, *deny))
        self.mode = Mode(mode)
        self.territory = territory
        self._lasting = tuple(Rule.parse(text) for text in allow)
        self._for_turn: tuple[Rule, ...] = ()
        self._deny = tuple(Rule.parse(text) for text in deny)

    def set_mode(self, mode: str) -> None:
        check_rules(mode, ())
        self.mode = Mode(mode)

    @property
    def _allow(self) -> tuple[Rule, ...]:
        return (*self._lasting, *self._for_turn)

    def add_allow(self, rule: str) -> None:
        self._lasting = (*self._lasting, Rule.parse(rule))

    def allow_for_turn(self, rules: tuple[str, ...]) -> None:
        """Until this is called again."""
        self._for_turn = tuple(map(Rule.parse, rules))

    def judge(self, tool: str, access: Access) -> Verdict:
        """The verdict over all that the call would touch. Nobody opens protected places to a subagent."""
        verdict = self._verdict(tool, access)
        is_wall = self.territory.is_fenced and verdict.by == "protection" and verdict.action is Action.ASK
        return dataclasses.replace(verdict, action=Action.DENY) if is_wall else verdict

    def narrowed(self, tool: str, access: Access) -> Access:
        """With those files among `writes` that the call can do without and that may be written without a
        question, or with the question that is asked about the others.
        """
        if not access.more:
            return access
        writer = (tool, WRITES_AS.get(tool, tool))
        whole = self.judge(tool, access)
        is_asked = self.mode is Mode.DEFAULT and whole.action is Action.ASK and whole.by == "mode"
        more: list[Path] = []
        for path in access.more:
            verdict = self._judge_path(writer, path, is_write=True)
            is_plain = verdict.by == "mode" and not self._wary(path, True) and self.territory.is_inside(path)
            if verdict.action is Action.ALLOW or (verdict.action is Action.ASK and is_plain and is_asked):
                more.append(path)
        return dataclasses.replace(access, writes=(*access.writes, *more), more=())

    def _verdict(self, tool: str, access: Access) -> Verdict:
        for rule in self._deny:
            if rule.fits_tool(tool) and rule.pattern is None:
                return Verdict(action=Action.DENY, reason=f"the rule {rule.text} denies it", by="rule")
        writer, runner = (tool, WRITES_AS.get(tool, tool)), (tool, RUNS_AS.get(tool, tool))
        verdicts = [self._judge_path((tool,), path, is_write=False) for path in access.reads]
        verdicts += [self._judge_path(writer, path, is_write=True) for path in access.writes]
        if access.runs is not None:
            verdicts.append(self._judge_command(runner, access.runs))
        verdicts += [self._judge_host(tool, host) for host in access.connects]
        if access.calls is not None:
            verdicts.append(self._judge_foreign(access.calls))
        if access.keeps:
            verdicts.append(self._judge_kept(tool, access.keeps))
        if not verdicts:
            return Verdict(action=Action.ALLOW, reason="it touches nothing", by="mode")
        verdict = strictest(verdicts)
        if tool in WRITES_AS and len(access.writes) > 1 and verdict.action is Action.ASK:
            # The call itself names one file.
            same = [one.reason for one in verdicts if (one.action, one.by) == (verdict.action, verdict.by)]
            verdict = dataclasses.replace(verdict, reason="; ".join(dict.fromkeys(same)))
        return verdict

    def _judge_path(self, tools: tuple[str, ...], path: Path, *, is_write: bool) -> Verdict:
        for rule in self._deny:
            if rule.fits_tool(*tools) and rule.fits_path(path, self.territory.rules_root):
                return Verdict(action=Action.DENY, reason=f"the rule {rule.text} denies it", by="rule")
        if is_write and self.territory.is_fenced and not self.territory.is_inside(path):
            reason = f"{path} is outside the folder of this subagent, {self.territory.cwd}"
            return Verdict(action=Action.DENY, reason=reason, by="protection")
        protected = self.territory.protected(path, is_write=is_write)
        if protected is not None:
            return Verdict(action=Action.ASK, reason=protected, by="protection")
        for rule in self._allow:
            if rule.fits_tool(*tools) and rule.fits_path(path, self.territory.rules_root):
                return Verdict(action=Action.ALLOW, reason=f"the rule {rule.text} allows it", by="rule")
        wary = None if is_write and self.mode is Mode.PLAN else self._wary(path, is_write)
        if wary is not None:
            return wary
        is_known = self.territory.is_inside(path) if is_write else self.territory.is_readable(path)
        if not is_known:
            verb = "write" if is_write else "read"
            reason = f"it would {verb} {path}, which is outside the workspace"
            return Verdict(action=Action.ASK, reason=reason, by="mode")
        if not is_write:
            return Verdict(action=Action.ALLOW, reason="reading inside the workspace", by="mode")
        shown = self.territory.shown(path)
        if self.mode is Mode.PLAN:
            reason = f"plan mode changes nothing, and it would write {shown}"
            return Verdict(action=Action.DENY, reason=reason, by="mode")
        if self.mode is Mode.DEFAULT:
            return Verdict(action=Action.ASK, reason=f"it would write {shown}", by="mode")
        return Verdict(action=Action.ALLOW, reason="writing inside the workspace", by="mode")

    def _wary(self, path: Path, is_write: bool) -> Verdict | None:
        """Places that are asked about unless a rule allows them."""
        secret = self.territory.secret(path)
        if secret is not None:
            return Verdict(action=Action.ASK, reason=secret, by="mode")
        later = self.territory.runs_later(path) if is_write else None
        return None if later is None else Verdict(action=Action.ASK, reason=later, by="protection")

    def _judge_host(self, tool: str, host: str) -> Verdict:
        for rules, action in ((self._deny, Action.DENY), (self._allow, Action.ALLOW)):
            for rule in rules:
                if rule.fits_tool(tool) and (rule.pattern is None or fnmatch.fnmatchcase(host, rule.pattern)):
                    return Verdict(action=action, reason=f"the rule {rule.text} says so", by="rule")
        return Verdict(action=Action.ASK, reason=f"it would connect to {host}", by="mode")

    def _judge_foreign(self, name: str) -> Verdict:
        """A tool of an MCP server: what it does is not known, so only a rule for its name allows it."""
        for rules, action in ((self._deny, Action.DENY), (self._allow, Action.ALLOW)):
            for rule in rules:
                if rule.fits_tool(name) and rule.pattern is None:
                    return Verdict(action=action, reason=f"the rule {rule.text} says so", by="rule")
        return Verdict(action=Action.ASK, reason=f"it would use the foreign tool {name}", by="mode")

    def _judge_kept(self, tool: str, where: str) -> Verdict:
        """What is kept is told to later sessions: words of a hostile file could reach other repositories."""
        for rules, action in ((self._deny, Action.DENY), (self._allow, Action.ALLOW)):
            for rule in rules:
                if rule.fits_tool(tool) and rule.pattern is None:
                    return Verdict(action=action, reason=f"the rule {rule.text} says so", by="rule")
        if self.mode is Mode.PLAN:
            reason = "plan mode changes nothing, and it would change what later sessions are told"
            return Verdict(action=Action.DENY, reason=reason, by="mode")
        if where == "here" and self.mode is not Mode.DEFAULT:
            return Verdict(action=Action.ALLOW, reason="it keeps a fact for this repository", by="mode")
        told = "this repository" if where == "here" else "all repositories"
        reason = f"it would change what later sessions of {told} are told"
        return Verdict(action=Action.ASK, reason=reason, by="mode")

    def _judge_command(self, tools: tuple[str, ...], command: str) -> Verdict:
        from k3agent.agent.shell_syntax import parse  # lazy: tree-sitter, 30 ms, only when a shell is used

        parsed = parse(command)
        if parsed.problem is not None:
            for rule in self._deny:
                if rule.fits_tool(*tools) and rule.fits_command(" ".join(command.split())):
                    return Verdict(action=Action.DENY, reason=f"the rule {rule.text} denies it", by="rule")
            return Verdict(
                action=Action.ASK, reason=f"the command cannot be judged: {parsed.problem}", by="protection"
            )
        from k3agent.agent.shell_rules import Judge  # lazy: as above

        judge = Judge(self.territory, self.mode)
        verdicts: list[Verdict] = []
        for simple in parsed.commands:
            verdicts.append(self._judge_simple(tools, simple.text, judge.judge(simple, parsed)))
            verdicts += self._lifted(tools, judge.judge_redirects(simple.redirects))
        verdicts += self._lifted(tools, judge.judge_redirects(parsed.redirects))
        verdicts += self._lifted(tools, judge.judge_variables(parsed.assigned))
        verdicts += self._lifted(tools, judge.judge_values(parsed))
        verdicts += self._lifted(tools, judge.judge_hidden(parsed.hidden))
        if not verdicts:
            return Verdict(action=Action.ALLOW, reason="an empty command", by="mode")
        return strictest(verdicts)

    def _lifted(self, tools: tuple[str, ...], verdicts: list[Verdict]) -> list[Verdict]:
        """A rule for a certain command says nothing of where its output goes; one for the whole tool does."""
        for rule in self._allow:
            if rule.fits_tool(*tools) and rule.pattern is None:
                return [verdict for verdict in verdicts if verdict.by == "protection"]
        return verdicts

    def _judge_simple(self, tools: tuple[str, ...], text: str, verdict: Verdict) -> Verdict:
        for rule in self._deny:
            if rule.fits_tool(*tools) and rule.fits_command(text):
                return Verdict(action=Action.DENY, reason=f"the rule {rule.text} denies `{text}`", by="rule")
        if verdict.by == "protection":
            return verdict
        for rule in self._allow:
            if rule.fits_tool(*tools) and rule.fits_command(text):
                return Verdict(action=Action.ALLOW, reason=f"the rule {rule.text} allows it", by="rule")
        return verdict
