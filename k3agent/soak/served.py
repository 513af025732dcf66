"""`kill -9` of the real engine while it streams: its server, its engine process, the agent, agent and server.

The embedded model does two small tasks. A run whose server dies starts it again and asks again; one that was
killed itself is gone on with. In the end files and conversation are those of an undisturbed run: nothing of a
half answer was acted on, and nothing was done twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3agent.providers.bundled import has_weights, missing_packages
from k3agent.soak.comparing import tree_of
from k3agent.soak.kills import KEPT
from k3agent.soak.proof import ProofFailed
from k3agent.store.database import FILE_NAME, find_damage
from k3agent.store.sessions import SessionStore
from k3agent.types import SessionId

SESSION = SessionId("00000000-0000-4000-8000-0000000e4d1e")
PROMPTS = ("Rename with_tax to gross_total in all files.", "Set TAX_RATE to 7.")
FILES = {
    "prices.py": "TAX_RATE = 19\n\n\ndef with_tax(net):\n    return net + net * TAX_RATE // 100\n",
    "report.py": 'from prices import with_tax\n\n\ndef report(net):\n    return f"total {with_tax(net)}"\n',
}
KINDS = ("server", "engine", "agent", "both")
# On a busy machine the model says a few tokens in a second.
PATIENCE_S = 900.0
MAX_LIVES = 40


def is_possible() -> bool:
    """Whether the engine and its model are here, and processes can be looked at."""
    return not missing_packages() and has_weights() and Path("/proc/self/task").exists()


@dataclass(frozen=True, slots=True)
class Strike:
    """While answer `step` of prompt `prompt` is streamed, after so many pieces of it."""

    prompt: int
    step: int
    piece: int
    kind: str


@dataclass(slots=True)
class Played:
    """What a run left, and how many pieces each of its answers had."""

    tree: dict[str, str] = field(default_factory=dict)
    story: list[Any] = field(default_factory=list)
    pieces: dict[tuple[int, int], int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class Run:
    """Both tasks in `root`, struck by `strikes`."""

    def __init__(self, root: Path, strikes: list[Strike]) -> None:
        self._root = root
        self._workspace, self._home = root / "workspace", root / "data"
        self._workspace.mkdir(parents=True)
        for name, text in FILES.items():
            (self._workspace / name).write_text(text)
        self._environ = {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "HOME": str(root / "home"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "K3AGENT_HOME": str(self._home),
        }
        if "PYTHONPATH" in self._environ:
            folders = self._environ["PYTHONPATH"].split(os.pathsep)
            self._environ["PYTHONPATH"] = os.pathsep.join(str(Path(one).absolute()) for one in folders)
        self._strikes = list(strikes)
        self._played = Played()
        # How many answers of this prompt are in, and how many pieces of the next one.
        self._step = self._piece = 0

    def play(self) -> Played:
        """Both tasks to their end."""
        try:
            for number in range(len(PROMPTS)):
                lives = 0
                while not self._is_done(number):
                    lives += 1
                    if lives > MAX_LIVES:
                        raise ProofFailed(f"{self._root}: prompt {number} does not come to its end")
                    self._life(number)
                self._played.counts["lives"] += lives
            self._look()
            return self._played
        finally:
            for pid in self._server_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _life(self, prompt: int) -> None:
        """From a start of the agent to its end or its death."""
        self._step, self._piece = self._num_answers(prompt), 0
        agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "k3agent.cli", "run", *self._flags(prompt), "--provider", "bundled",
             "--output-format", "stream-json", "--include-partial-messages"],
            cwd=self._workspace,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        overdue = threading.Timer(PATIENCE_S, agent.kill)
        overdue.start()
        tail: list[str] = []
        try:
            for line in agent.stdout or ():
                tail = [*tail[-20:], line]
                self._hear(agent, prompt, line)
        finally:
            is_overdue = not overdue.is_alive()
            overdue.cancel()
            if agent.poll() is None:
                agent.kill()
            code = agent.wait()
            if agent.stdout is not None:
                agent.stdout.close()
        if is_overdue:
            raise ProofFailed(f"{self._root}: a life took more than {PATIENCE_S:g} s")
        self._check_store()
        self._played.counts[f"exit {code}"] += 1
        # 75: the server died twice within a minute; going on is then up to the next life.
        if code not in (0, 75, -signal.SIGKILL):
            raise ProofFailed(f"{self._root}: k3agent ended with {code}: {''.join(tail)[-2000:]}")

    def _hear(self, agent: subprocess.Popen[str], prompt: int, line: str) -> None:
        """Count the pieces of the answer that is streamed, and strike where it is time."""
        try:
            said = json.loads(line)
        except ValueError:
            return
        if said.get("type") in ("system", "assistant") and said.get("subtype") != "prefill":
            # Asked again, or a new answer: either way it is streamed from its beginning.
            self._piece = 0
            self._step += said["type"] == "assistant"
        if said.get("type") != "stream_event":
            return
        self._piece += 1
        place = (prompt, self._step)
        self._played.pieces[place] = max(self._played.pieces.get(place, 0), self._piece)
        for strike in self._strikes:
            if (strike.prompt, strike.step) == place and self._piece >= strike.piece:
                self._strikes.remove(strike)
                self._strike(agent, strike.kind)
                return

    def _strike(self, agent: subprocess.Popen[str], kind: str) -> None:
        if kind in ("agent", "both"):
            agent.kill()
            agent.wait()
        pids = self._server_pids()
        victims = {"agent": [], "engine": pids[1:]}.get(kind, pids[:1])
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind != "agent" and not victims:
            raise ProofFailed(f"{self._root}: there is no {kind} to be killed")
        self._played.counts[f"killed {kind}"] += 1

    def _server_pids(self) -> list[int]:
        """The server and the processes that it started."""
        for file in (self._home / "run").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(json.loads(file.read_text())["pid"])
                return [pid, *_children(pid)]
        return []

    # --- what the store says ---

    def _flags(self, prompt: int) -> tuple[str, ...]:
        with self._store() as store:
            if not store.exists(SESSION):
                return (PROMPTS[prompt], "--session-id", SESSION)
            is_asked = len(store.turns(SESSION)) > prompt
        return ("--resume", SESSION) if is_asked else (PROMPTS[prompt], "--resume", SESSION)

    def _is_done(self, prompt: int) -> bool:
        if not (self._home / FILE_NAME).exists():
            return False
        with self._store() as store:
            turns = store.turns(SESSION)
        return len(turns) > prompt and turns[prompt].outcome == "success"

    def _num_answers(self, prompt: int) -> int:
        with self._store() as store:
            rows = store.requests(SESSION)
        return sum(row.turn == prompt + 1 and row.outcome == "ok" for row in rows)

    def _check_store(self) -> None:
        damage = find_damage(self._home / FILE_NAME)
        if damage:
            raise ProofFailed(f"{self._root}: the store: {damage}")

    def _look(self) -> None:
        """What was left; each call has one result, and nothing is open."""
        with self._store() as store:
            messages = store.messages(SESSION)
            calls = [call.id for message in messages for call in message.calls]
            if calls != [result.call_id for message in messages for result in message.results]:
                raise ProofFailed(f"{self._root}: calls and results differ")
            if sorted(calls) != sorted(row.call_id for row in store.calls(SESSION)):
                raise ProofFailed(f"{self._root}: calls and their rows differ")
            if store.draft(SESSION) is not None:
                raise ProofFailed(f"{self._root}: a draft was left")
        self._played.tree = tree_of(self._workspace)
        self._played.story = [
            (
                message.role.value,
                message.text.replace(str(self._root), "ROOT"),
                message.reasoning.text if message.reasoning else None,
                [(call.name, call.arguments) for call in message.calls],
                [result.text.replace(str(self._root), "ROOT") for result in message.results],
            )
            for message in messages
        ]

    def _store(self) -> contextlib.closing[SessionStore]:
        return contextlib.closing(SessionStore(self._home))


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from (int(word) for word in task.read_text().split())


def choose(chance: random.Random, count: int, pieces: dict[tuple[int, int], int]) -> list[Strike]:
    """`count` strikes, each in an answer of its own as long as there are enough."""
    places = [place for place, number in sorted(pieces.items()) if number > 1]
    chosen = chance.sample(places, min(count, len(places)))
    first = chance.randrange(len(KINDS))
    return [
        Strike(*place, piece=chance.randrange(1, pieces[place]), kind=KINDS[(first + at) % len(KINDS)])
        for at, place in enumerate(sorted(chosen))
    ]


def prove(
    root: Path, *, num_kills: int, kills_per_run: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """The undisturbed run, then as many disturbed ones as the kills need. Raises ProofFailed."""
    began = time.monotonic()
    whole = Run(root / "whole", []).play()
    num_pieces = sum(whole.pieces.values())
    say(f"undisturbed: {len(whole.pieces)} answers of {num_pieces} pieces, {time.monotonic() - began:.0f} s")
    if whole.tree == {} or "gross_total" not in str(whole.story):
        raise ProofFailed(f"{root}: the undisturbed run did not do its task")
    chance, total = random.Random(seed), Counter[str]()
    while (left := num_kills - sum(total[f"killed {kind}"] for kind in KINDS)) > 0:
        folder = root / f"k{total['runs']:04d}"
        strikes = choose(chance, min(kills_per_run, left), whole.pieces)
        played = Run(folder, strikes).play()
        if played.tree != whole.tree:
            raise ProofFailed(f"{folder}: files differ after {strikes}")
        if played.story != whole.story:
            raise ProofFailed(f"{folder}: {_apart(played.story, whole.story)} after {strikes}")
        shutil.rmtree(folder)
        total += played.counts
        total["runs"] += 1
        say(f"run {total['runs']}: {dict(played.counts)}")
    return total


def _apart(one: list[Any], other: list[Any]) -> str:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"message {at} is {left!r}, not {right!r}"
    return f"{len(one)} messages, not {len(other)}"
