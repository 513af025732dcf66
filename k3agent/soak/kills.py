"""`kill -9` of the agent, its model's server, or both, at random points of a scripted task.

A life of the agent ends at a chosen share of a chosen step; the next one goes on with the session. In the end
files, commits, store and the next request are compared with those of an undisturbed run. Only the result of a
call whose process died during it may differ, and has to say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from k3agent.soak.comparing import Place, Played, check_requests, differences, tree_of
from k3agent.soak.proof import ProofFailed
from k3agent.soak.task import (
    CHECK,
    IDENTITY,
    NEXT_PROMPT,
    PROMPT,
    Script,
    compact_tokens,
    make_workspace,
)
from k3agent.store.database import FILE_NAME, find_damage
from k3agent.store.records import CallState
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, SessionId

SESSION = SessionId("00000000-0000-4000-8000-00000000c0de")
KINDS = ("agent", "agent", "agent", "backend", "both", "asleep")
# Most of what can go wrong lies in the short time in which calls run.
PHASES = ("asked", "sent", "sent")
KEPT = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "LANG", "OMP_NUM_THREADS", "VIRTUAL_ENV")
PATIENCE_S = 180.0
ASLEEP_S = 0.5
# A life in which nothing happens to the agent, but its server died, is begun again this often.
MAX_LIVES_MORE = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """At `share` of the time that a phase of step `step` took in the undisturbed run: `asked` while its
    answer is streamed, `sent` while its calls run and are stored. `asleep` is no kill: both stand still for a
    moment, as where the machine is suspended.
    """

    kind: str
    step: int
    phase: str
    share: float

    @property
    def place(self) -> Place:
        return self.step, self.phase


class Endpoint:
    """The model's server as a process. `told` gets (place, time) of each request and each answer."""

    def __init__(self, log: Path, num_chapters: int, environ: dict[str, str]) -> None:
        self.log = log
        self.told: queue.Queue[tuple[Place, float]] = queue.Queue()
        self.url = ""
        self._argv = [
            sys.executable,
            "-m",
            "k3agent.soak.endpoint",
            str(log),
            "--chapters",
            str(num_chapters),
        ]
        self._environ = environ
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.start()

    def start(self) -> None:
        """On the same port as before, if there was one."""
        process = subprocess.Popen(
            [*self._argv, "--port", str(self._port)], stdout=subprocess.PIPE, text=True, env=self._environ
        )
        self._process = process
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise ProofFailed(f"the endpoint did not start on port {self._port}")
        self.url = url
        self._port = int(url.rpartition(":")[2].partition("/")[0])
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            number, phase = line.split()
            self.told.put(((int(number), phase), time.monotonic()))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def bodies(self) -> list[tuple[int, JsonObject]]:
        """Every request that arrived, in order. A line that a kill has cut in two is left out."""
        found: list[tuple[int, JsonObject]] = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                found.append((entry["position"], entry["body"]))
        return found


class Run:
    """One run of the task in `root`, disturbed by `kills`."""

    def __init__(
        self, root: Path, num_chapters: int, kills: list[Kill], durations: dict[Place, float]
    ) -> None:
        self.root = root
        self.workspace, self.home = root / "workspace", root / "data"
        make_workspace(self.workspace, num_chapters)
        (root / "home").mkdir()
        self.environ = _environ(root, self.home, num_chapters)
        self.counts: Counter[str] = Counter()
        self._script = Script(num_chapters)
        self._kills = sorted(kills, key=lambda kill: (kill.place, kill.share))
        self._durations = durations
        self._at: Place = (-1, "")
        self._times: dict[Place, float] = {}
        self._endpoint = Endpoint(root / "requests.jsonl", num_chapters, self.environ)

    def play(self) -> Played:
        """To the end of the task, then one more prompt."""
        try:
            lives = 0
            while not self._is_done():
                lives += 1
                if lives > len(self._kills) + self.counts["killed agent"] + MAX_LIVES_MORE:
                    raise ProofFailed(f"{self.root}: the task does not come to its end")
                self._life()
            self.counts["lives"] = lives
            self._say_next()
            return self._played()
        finally:
            self._endpoint.kill()
            self._check_nothing_left()

    def _life(self) -> None:
        """From a start of the agent to its end or its death."""
        while not self._endpoint.told.empty():
            self._endpoint.told.get()
        agent = self._start(*self._flags())
        output = b""
        try:
            end = time.monotonic() + PATIENCE_S
            while agent.poll() is None:
                if time.monotonic() > end:
                    raise ProofFailed(f"{self.root}: a life took more than {PATIENCE_S} s")
                with contextlib.suppress(queue.Empty):
                    self._note(*self._endpoint.told.get(timeout=0.02))
                while self._kills and self._at[0] > self._kills[0].step:
                    # A kill before it took longer than the step: the next step is not to be hit in its place.
                    self._kills.pop(0)
                    self.counts["missed"] += 1
                if self._kills and self._at >= self._kills[0].place:
                    self._strike(agent, self._kills.pop(0))
        finally:
            if agent.poll() is None:
                agent.kill()
            output = agent.communicate()[0]
        if agent.returncode != -signal.SIGKILL:
            self._life_ended(agent.returncode, output)

    def _life_ended(self, code: int, output: bytes) -> None:
        """It ended by itself. Looks whether that is a known end."""
        why = re.search(rb'"errors":\["(.{0,60})', output)
        said = f" ({why[1].decode(errors='replace')})" if why and code else ""
        self.counts[f"exit {code}{said}"] += 1
        if code not in (0, 1, 75):
            raise ProofFailed(f"{self.root}: k3agent ended with {code}: {output[-2000:]!r}")

    def _note(self, place: Place, at: float) -> None:
        # The summary of a compaction is no step.
        if place[0] >= 0:
            self._at = place
            self._times[place] = at

    def _strike(self, agent: subprocess.Popen[bytes], kill: Kill) -> None:
        """Wait until the share of the phase has passed, then kill."""
        begun = self._times[self._at]
        time.sleep(max(0.0, begun + kill.share * self._durations.get(kill.place, 0.1) - time.monotonic()))
        if kill.kind == "asleep":
            self._sleep(agent)
            return
        if kill.kind != "backend":
            agent.kill()
            agent.wait()
            self.counts["killed agent"] += 1
        if kill.kind != "agent":
            self._endpoint.kill()
            self.counts["killed backend"] += 1
        if kill.kind != "backend":
            self._check_store()
        if kill.kind != "agent":
            self._endpoint.start()

    def _sleep(self, agent: subprocess.Popen[bytes]) -> None:
        """Both processes stand still, then go on."""
        pids = [agent.pid, self._endpoint.pid]
        for signum in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                # The agent may just have come to its end.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            time.sleep(ASLEEP_S if signum is signal.SIGSTOP else 0.0)
        self.counts["asleep"] += 1

    def _check_store(self) -> None:
        """After a death: at most the answer that was being streamed is missing."""
        store = SessionStore(self.home)
        try:
            stored = [item for item in store.messages(SESSION) if item.calls or item.finish is not None]
        finally:
            store.close()
        damage = find_damage(self.home / FILE_NAME)
        if damage:
            raise ProofFailed(f"{self.root}: the store: {damage}")
        # The request for answer N came when all answers before it were in.
        if len(stored) < self._at[0]:
            raise ProofFailed(f"{self.root}: {self._at[0]} answers were in, {len(stored)} are stored")

    def _flags(self) -> tuple[str, ...]:
        """How the next life goes on."""
        store = SessionStore(self.home)
        try:
            if not store.exists(SESSION):
                return (PROMPT, "--session-id", SESSION)
            if store.last_turn(SESSION) is None:
                return (PROMPT, "--resume", SESSION)
            return ("--resume", SESSION)
        finally:
            store.close()

    def _is_done(self) -> bool:
        if not (self.home / FILE_NAME).exists():
            return False
        store = SessionStore(self.home)
        try:
            last = store.last_turn(SESSION)
        finally:
            store.close()
        return last is not None and last.outcome == "success"

    def _start(self, *flags: str) -> subprocess.Popen[bytes]:
        argv = [*self._program(), "run", *flags, "--base-url", self._endpoint.url]
        return subprocess.Popen(
            [*argv, "--model", "scripted", "--check", CHECK, "--output-format", "json"],
            cwd=self.workspace,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _program(self) -> list[str]:
        """What is started as k3agent in the next life."""
        return [sys.executable, "-m", "k3agent.cli"]

    def _say_next(self) -> None:
        agent = self._start(NEXT_PROMPT, "--resume", SESSION)
        output = agent.communicate(timeout=PATIENCE_S)[0]
        if agent.returncode != 0:
            raise ProofFailed(
                f"{self.root}: the next prompt ended with {agent.returncode}: {output[-2000:]!r}"
            )

    # --- what is left at the end ---

    def _played(self) -> Played:
        bodies = self._endpoint.bodies()
        check_requests(bodies)
        store = SessionStore(self.home)
        try:
            story = self._story(store)
            self._check_rows(store)
            num_compactions = len(store.compactions(SESSION))
        finally:
            store.close()
        times = sorted(self._times.items())
        durations = {place: after - at for (place, at), (_, after) in pairwise(times)}
        return Played(
            tree=tree_of(self.workspace),
            commits=_git(self.workspace, self.environ, "log", "--format=%s %T"),
            story=story,
            next_request=json.loads(json.dumps(bodies[-1][1]).replace(str(self.root), "ROOT")),
            durations=durations,
            num_compactions=num_compactions,
            counts=self.counts,
        )

    def _story(self, store: SessionStore) -> list[Any]:
        return [
            (
                message.role.value,
                message.origin.value,
                message.text.replace(str(self.root), "ROOT"),
                message.reasoning.text if message.reasoning else None,
                [(call.id, call.name, call.arguments) for call in message.calls],
                [result.text.replace(str(self.root), "ROOT") for result in message.results],
            )
            for message in store.messages(SESSION)
        ]

    def _check_rows(self, store: SessionStore) -> None:
        """Each call has one row with a result, each turn an end, and no draft is left."""
        calls = [call.id for message in store.messages(SESSION) for call in message.calls]
        rows = store.calls(SESSION)
        if sorted(calls) != sorted(row.call_id for row in rows):
            raise ProofFailed(f"{self.root}: calls and their rows differ")
        for row in rows:
            self.counts[f"calls {row.state}"] += 1
            if row.result is None or row.state is CallState.STARTED:
                raise ProofFailed(f"{self.root}: call {row.call_id} was left open")
        if store.draft(SESSION) is not None:
            raise ProofFailed(f"{self.root}: a draft was left")

    def _check_nothing_left(self) -> None:
        """No process of the run lives on in its folders."""
        left = [pid for pid in _pids_below(self.root) if pid != os.getpid()]
        if left:
            raise ProofFailed(f"{self.root}: processes {left} were left behind")


def _environ(root: Path, home: Path, num_chapters: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    if "PYTHONPATH" in kept:
        folders = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
    return {
        **kept,
        **IDENTITY,
        "HOME": str(root / "home"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "K3AGENT_HOME": str(home),
        "K3AGENT_COMPACTION_TOKENS": str(compact_tokens(num_chapters)),
    }


def _pids_below(root: Path) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and (path / "cwd").readlink().is_relative_to(root):
                found.append(int(path.name))
    return found


def _git(folder: Path, environ: dict[str, str], *argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=folder, env=environ, check=True, capture_output=True, text=True)
    return done.stdout


def choose(chance: random.Random, count: int, num_steps: int) -> list[Kill]:
    """`count` points, evenly over the steps, several at one step too, but never at two in a row: a step with
    an effect is followed by one that looks and repairs, which nobody would repair in turn.
    """
    steps = list(range(chance.randrange(2), num_steps, 2))
    return [
        Kill(
            kind=chance.choice(KINDS),
            step=chance.choice(steps),
            phase=chance.choice(PHASES),
            share=chance.uniform(0.0, 1.05),
        )
        for _ in range(count)
    ]


def prove(
    root: Path,
    *,
    num_kills: int,
    num_chapters: int,
    kills_per_task: int,
    seed: int,
    say: Callable[[str], None],
) -> Counter[str]:
    """The undisturbed run, then as many disturbed ones as the kills need. Raises ProofFailed."""
    whole = Run(root / "whole", num_chapters, [], {}).play()
    say(f"undisturbed: {len(whole.story)} messages, {whole.num_compactions} compactions")
    chance = random.Random(seed)
    total: Counter[str] = Counter()
    round_number = 0
    while total["killed agent"] + total["killed backend"] < num_kills:
        left = num_kills - total["killed agent"] - total["killed backend"]
        kills = choose(chance, min(kills_per_task, left), len(Script(num_chapters)) - 1)
        folder = root / f"k{round_number:04d}"
        played = Run(folder, num_chapters, kills, whole.durations).play()
        problems = differences(played, whole)
        if problems:
            raise ProofFailed(f"seed {seed}, round {round_number} ({folder}): " + "; ".join(problems))
        total += played.counts
        shutil.rmtree(folder)
        say(f"round {round_number}: {dict(played.counts)}")
        round_number += 1
    return total
