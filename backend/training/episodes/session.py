"""A transcript being played: messages, tool calls with their real results, and what was changed so far."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3agent.backend.training.episodes.programs import Said
from k3agent.backend.training.episodes.toolbox import Result, Toolbox

Message = dict[str, Any]


class Report(Exception):
    """Ends a task early with a final thought and answer (nothing found, a question back, giving up)."""

    def __init__(self, think: str, answer: str) -> None:
        super().__init__(answer)
        self.think = think
        self.answer = answer


class TooLong(Exception):
    """The episode went over its budget and is dropped."""


@dataclass(slots=True)
class Session:
    """One conversation. `unlearned` holds indexes of assistant messages that get no loss."""

    box: Toolbox
    rng: random.Random
    messages: list[Message] = field(default_factory=list)
    unlearned: set[int] = field(default_factory=set)
    edits: list[tuple[str, str, str]] = field(default_factory=list)
    max_chars: int = 14000
    size: int = 0
    lead: str = ""
    slips: bool = False
    notes: list[str] = field(default_factory=list)
    """What the report must say besides: near matches that were taken."""
    command: str = ""
    """The shell's last command."""
    gave_up: bool = False
    """Whether the present task ended with a report that an edit failed."""

    def user(self, text: str) -> None:
        """The user speaks."""
        self.box.new_turn()
        self.messages.append({"role": "user", "content": text})
        self.size += len(text)

    def call(self, name: str, think: str, *, learn: bool = True, **args: Any) -> Result:
        """The assistant calls a tool and gets its result."""
        if learn and name == "edit" and args["old"] == args["new"]:
            raise ValueError(f"the oracle's edit of {args['path']} changes nothing: {args['old']!r}")
        if self.lead:
            think, self.lead = f"{self.lead} {think}", ""
        call_id = f"{name}:{sum(1 for message in self.messages if message['role'] == 'tool')}"
        if not learn:
            self.unlearned.add(len(self.messages))
        self.messages.append(
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": think,
                "tool_calls": [
                    {
                        "id": call_id,
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps(args, ensure_ascii=False)},
                    }
                ],
            }
        )
        if name == "shell":
            self.command = str(args["command"])
        result = self.box.call(name, args)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result.text})
        self.size += len(think) + len(result.text) + sum(len(str(value)) for value in args.values()) + 60
        if self.size > self.max_chars:
            raise TooLong
        if name == "edit" and not result.is_error:
            self.edits.append((args["path"], args["old"], args["new"]))
        return result

    def answer(self, text: str, think: str) -> None:
        """The assistant's final words for this prompt."""
        if self.lead:
            think, self.lead = f"{self.lead} {think}", ""
        self.messages.append({"role": "assistant", "content": text, "reasoning_content": think})
        self.size += len(text) + len(think)
        if self.size > self.max_chars:
            raise TooLong


Play = Callable[[Session], tuple[str, str]]
"""Plays a task and returns the last thought and the answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a checker sees: files before and after, and the answer."""

    before: dict[str, str]
    after: dict[str, str]
    answer: str
    root: str = ""
    """The folder, for what files do not show: the state of its git repository."""


Check = Callable[[Outcome], str | None]


@dataclass(slots=True)
class Plan:
    """A task in a project: what is wanted, how the oracle plays it, how it is judged.

    `subject` is what "it" means next. `prepare` changes the project's files before the user speaks, `setup`
    the folder.
    """

    goal: str
    family: str
    slots: dict[str, str]
    play: Play
    check: Check
    subject: tuple[str, str] | None = None
    prompt: str | None = None
    prepare: Callable[[dict[str, str]], None] | None = None
    setup: Callable[[str], None] | None = None
    instructions: str = ""
    """The text of the project's AGENTS.md, which k3agent quotes before the user's first words."""
    alone: bool = False
    """Whether it needs a session of its own: it brings a project or a repository."""
    commands: tuple[str, ...] = ()
    """Checks that the agent must run when the model says that it is done."""
    refused: str = ""
    """What the system says to each command that would make, move or remove files."""
    programs: Mapping[str, Said] = field(default_factory=dict)
    """What commands say whose programs are not on every computer."""


def played(plan: Plan, session: Session) -> tuple[str, str]:
    """The plan's last thought and answer; an early report counts as an answer."""
    return told(plan.play, session)


def told(play: Play, session: Session) -> tuple[str, str]:
    """What a task ends with, what its answer must say besides in front of it."""
    session.notes.clear()
    try:
        think, answer = play(session)
    except Report as report:
        think, answer = report.think, report.answer
    whole = " ".join([*session.notes, answer])
    session.notes.clear()
    return think, whole


def in_turn(plays: list[Play], answers: list[str] | None = None) -> Play:
    """Several tasks of one message, one after the other: counted in the thoughts, numbered in the answer.

    `answers` is filled with the answers to each.
    """

    def play(session: Session) -> tuple[str, str]:
        found: list[str] = []
        think = ""
        for number, task in enumerate(plays, 1):
            place = f"{len(plays)} tasks. The first:" if number == 1 else f"Task {number} of {len(plays)}:"
            session.lead = " ".join(filter(None, (session.lead, think, place)))
            think, answer = told(task, session)
            found.append(answer)
        if answers is not None:
            answers[:] = found
        return think, "\n".join(f"{number}. {answer}" for number, answer in enumerate(found, 1))

    return play
