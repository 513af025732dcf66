"""Plays episodes: draws a project, several sessions in it, and one or more tasks a session; keeps
what its checkers accept.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.agent.instructions import Instruction, brief_instructions
from k3agent.backend.training.episodes import checks, goals
from k3agent.backend.training.episodes.compacted import compacted
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.outputs import Look
from k3agent.backend.training.episodes.project import Project, draw_project
from k3agent.backend.training.episodes.registry import GoalEntry, Setting
from k3agent.backend.training.episodes.session import Message, Outcome, Plan, Session, TooLong, played
from k3agent.backend.training.episodes.toolbox import Machine, Toolbox
from k3agent.backend.training.episodes.wording import say
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.episodes.workspace import Workspace

FAMILY_WEIGHTS = {
    "list": 6,
    "find": 6,
    "where": 7,
    "explain": 11,
    "setvalue": 11,
    "rename": 9,
    "replace": 14,
    "addline": 10,
    "addfunc": 8,
    "create": 8,
    "fix": 36,
    "run": 7,
    "refuse": 8,
    "chat": 7,
}
SECOND_WEIGHTS = {
    "chain": 18,
    "git": 12,
    "data": 14,
    "web": 14,
    "rules": 12,
    "recover": 8,
    "ask": 6,
    "german": 13,
    "chinese": 10,
    "long": 7,
}
"""Of the second edition's families; what needs long documents waits for stage 3."""
SECOND_SHARE = 0.35
"""Of all sessions, those of the second edition's families, from stage 1 on."""
STAY_SHARE = 0.6
"""Of later tasks in such a session, those of the same family."""
MAX_CHARS = (3500, 9000, 9000, 33_000)
"""How long a session may be, by stage."""
LONG = 3
"""The stage of long files and outputs, long conversations, and conversations made short."""
LONG_SHARE = 0.4
"""Of its sessions, those about long files and outputs."""
SESSIONS_A_PROJECT = 4


@dataclass(slots=True)
class Episode:
    """A finished transcript."""

    messages: list[Message]
    unlearned: set[int]
    goals: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """The index of each task's first message."""

    def without_last(self) -> "Episode":
        """The same conversation before its last task."""
        end = self.starts[-1]
        unlearned = {index for index in self.unlearned if index < end}
        return Episode(self.messages[:end], unlearned, self.goals[:-1], self.starts[:-1])


class Player:
    """One source of episodes with its own folder and random numbers."""

    def __init__(
        self,
        seed: int,
        worker: int = 0,
        *,
        held_out: bool = False,
        part: str = "",
        strict: bool = False,
        second_share: float = SECOND_SHARE,
    ) -> None:
        self.rng = random.Random(f"{seed}/{worker}/{held_out}/{part}")
        self.held_out = held_out
        self.part = part or ("held_out" if held_out else "train")
        self.strict = strict
        self.second_share = second_share
        self.box = Toolbox(Workspace())
        self.rejected: Counter[str] = Counter()
        self.reasons: list[tuple[str, str]] = []
        self.accepted: Counter[str] = Counter()

    def close(self) -> None:
        """Remove the folder and end the helper process."""
        self.box.close()

    def episodes(self, stage: int) -> Iterator[Episode]:
        """Episodes without end."""
        while True:
            words = Words(self.rng, self.held_out, self.part)
            project = draw_project(
                self.rng, words, size=self.rng.choice((1, 1, 2, 2)) if stage == 0 else None
            )
            for _ in range(SESSIONS_A_PROJECT):
                try:
                    episode = self.session(project, words, stage)
                except Exception:
                    # One odd project must not end a training run; tests run strictly.
                    if self.strict:
                        raise
                    self.rejected["crash"] += 1
                    break
                if episode is not None:
                    yield episode

    def machine(self, stage: int) -> Machine:
        """A computer."""
        rng = self.rng
        machine = Machine(
            shown_root=rng.choice(("/home/{}/{}", "/work/{1}", "/tmp/{1}", "/Users/{0}/code/{1}", "/srv/{1}"))
        )
        words = Words(rng, self.held_out)
        machine.shown_root = machine.shown_root.format(words.noun(), words.noun())
        if stage:
            machine.look = Look.draw(rng)
            kind = rng.random()
            if kind < 0.08:
                machine.has_pytest = False
            elif kind < 0.14:
                machine.python = "python3"
            elif kind < 0.165:
                machine.shell_denied = rng.choice(goals.NOT_RUN)
            elif kind < 0.195:
                machine.edits_denied = rng.choice(goals.NOT_WRITTEN)
        return machine

    def session(self, project: Project, words: Words, stage: int) -> Episode | None:
        """One session in a project; None when a checker rejects it or it is too long."""
        rng = self.rng
        self.box.workspace.reset(project.files)
        self.box.new_session(self.machine(stage))
        session = Session(self.box, rng, max_chars=MAX_CHARS[stage], slips=stage > 0)
        count = 1 if stage == 0 else rng.choice((1, 1, 1, 2, 2, 3) if stage == 1 else (1, 1, 2, 2, 3, 4))
        family = self.second_family(stage)
        if stage == LONG:
            count = 1 if family else rng.randint(4, 12)
        names: list[str] = []
        starts: list[int] = []
        subject: Plan | None = None
        for number in range(count):
            keep = (len(session.messages), session.size)
            plan = self.draw(project, words, stage, subject if number else None, session, family)
            if plan is None:
                break
            try:
                ok = self.play(session, plan)
            except TooLong:
                if not names:
                    return None
                del session.messages[keep[0] :]
                session.unlearned = {index for index in session.unlearned if index < keep[0]}
                break
            if not ok:
                return None
            names.append(plan.goal)
            starts.append(keep[0])
            subject = plan
            if plan.alone:
                break
            if family and rng.random() >= STAY_SHARE:
                family = ""
        if stage == LONG and not family and (short := compacted(session.messages, session.unlearned, rng)):
            return Episode(*short, names)
        return Episode(session.messages, session.unlearned, names, starts) if names else None

    def play(self, session: Session, plan: Plan) -> bool:
        """Play one task; whether its checker accepts."""
        workspace = self.box.workspace
        if plan.prepare is not None:
            files = workspace.snapshot()
            plan.prepare(files)
            workspace.reset(files)
        if plan.setup is not None:
            plan.setup(workspace.root)
        before = workspace.snapshot()
        if plan.instructions:
            path = Path(self.box.machine.shown_root or workspace.root) / "AGENTS.md"
            size = len(plan.instructions.encode())
            session.user(
                brief_instructions([Instruction(path=path, text=plan.instructions.strip(), size_bytes=size)])
            )
        session.user(
            plan.prompt if plan.prompt is not None else say(plan.goal, plan.slots, self.rng, self.part)
        )
        session.gave_up = False
        think, answer = played(plan, session)
        session.answer(answer, think)
        outcome = Outcome(before, workspace.snapshot(), answer, workspace.root)
        verdict = plan.check(outcome)
        if verdict is None or self.honestly_stopped(outcome, session.gave_up):
            self.accepted[plan.goal] += 1
            return True
        self.rejected[plan.goal] += 1
        if len(self.reasons) < 400:
            self.reasons.append(
                (plan.goal, f"{verdict} | {plan.slots} | {session.messages[-1]['content'][:200]!r}")
            )
        return False

    def honestly_stopped(self, outcome: Outcome, gave_up: bool = False) -> bool:
        """Whether the task could not be done here, nothing changed, and the answer says so."""
        machine = self.box.machine
        hindered = machine.shell_denied or machine.edits_denied or not machine.has_pytest or gave_up
        said = re.search(r"\b(may not|could not) |\b(darf|konnte) |无法|不能", outcome.answer)
        return bool(hindered and said) and checks.unchanged(outcome) is None

    def second_family(self, stage: int) -> str:
        """A family of the second edition for a session, or '' for one of the first."""
        if stage == LONG:
            return "long" if self.rng.random() < LONG_SHARE else ""
        if stage == 0 or self.rng.random() >= self.second_share:
            return ""
        return self.rng.choices(list(SECOND_WEIGHTS), list(SECOND_WEIGHTS.values()))[0]

    def draw(
        self,
        project: Project,
        words: Words,
        stage: int,
        after: Plan | None,
        session: Session,
        family: str = "",
    ) -> Plan | None:
        """A plan that fits the project as it is now, of one family of the second edition if it is named."""
        rng = self.rng
        files = self.box.workspace.snapshot()
        ctx = Setting(Facts(files), rng, words, project)
        if family:
            plan = draw_plan(ctx, stage, family)
            return plan if plan is None or not (after is not None and plan.alone) else draw_plan(ctx, stage)
        if after is not None and rng.random() < 0.3:
            plan = goals.follow_up(ctx, after, session)
            if plan is not None:
                return plan
        if stage == 2 and rng.random() < 0.1:
            plan = goals.joined(ctx)
            if plan is not None:
                return plan
        return draw_plan(ctx, stage)


def draw_plan(ctx: Setting, stage: int, family: str | None = None) -> Plan | None:
    """A plan of a random family (or of the named one)."""
    by_family = goals.by_family(stage)
    usual = [name for name in by_family if name in FAMILY_WEIGHTS]
    for _ in range(30):
        chosen = family or ctx.rng.choices(usual, [FAMILY_WEIGHTS[name] for name in usual])[0]
        entries: list[GoalEntry] = by_family[chosen]
        entry = ctx.rng.choices(entries, [item.weight for item in entries])[0]
        plan = entry.make(ctx)
        if plan is not None:
            return plan
    return None
