"""Systematic search: where the cause is not evident, one-line changes are tried one after the other, with the
failing test after each, until it passes; what did not help is put back.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.candidates import EVIDENT, Candidate, candidates_for
from k3agent.backend.training.episodes.editing import difference, edit_text, failed
from k3agent.backend.training.episodes.evidence import evidence
from k3agent.backend.training.episodes.mutate import ENDLESS, outcome
from k3agent.backend.training.episodes.parts import MOST_PARTS, goes_on, left_in, parts_of, said_of
from k3agent.backend.training.episodes.policy import View, quoted
from k3agent.backend.training.episodes.session import Report, Session
from k3agent.backend.training.episodes.symptoms import points_to, symptom
from k3agent.backend.training.episodes.testruns import PYTEST, QUIET, STOP, Failure, Run, parse_run
from k3agent.backend.training.episodes.tracing import own_places

SEARCHED = 0.95
"""Of the repairs whose cause is not evident, those that are played as a search."""
GIVEN_UP = 0.08
"""Of the searches that may, those that end with an honest report."""
UNLIKELY = 0.25
"""The same where the right change is none that one would think of."""
DECIDED = 0.7
"""Of the searches whose evidence decides for a change, those that try it first also where there is room for
more.
"""
POINTED = 0.5
"""The same where the symptom says only which kind of change it is."""
POSITIONS = (0.4, 0.28, 0.19, 0.13)
"""How often the right change comes first, second, ...: wrong attempts are not learned, so each step learns
what is likely after what was tried. Where there is no room for more the right one comes sooner.
"""
MOST_WRONG = 3
ENOUGH = 3
"""Attempts after which a search may be given up."""
LEAST = 12
"""Changes that there must be to try for a search that finds nothing."""
STRAY = 0.25
"""Of the steps after a wrong attempt, those with a call that is refused first (it is not learned)."""
STUCK = 0.3
"""Of those, the ones where the call is made again; after two attempts half of them end the search."""
FITTING = 4070
"""Tokens of an episode that is trained as a whole, about."""
TOKENS = (890, 0.57, 51)
"""About how many tokens stand for the constant beginning, a character and a message (measured)."""
AN_ATTEMPT = 690
"""Tokens of an attempt in a short line and its test run, where that prints nothing else."""
AN_END = 230
"""Tokens of a last check and the report."""
LONG_SESSION = 10_000
"""Sessions that may be longer have room for all."""
LONGEST_ERROR = 60
"""Characters of an error that is told again after an attempt."""
MOST_LINES = 8
"""Lines that are named as left."""
NONSENSE = frozenset(("TypeError", "NameError", "AttributeError", "UnboundLocalError"))


@dataclass(frozen=True, slots=True)
class Tried:
    """How a search ended: the change that helped, and the run that says so."""

    change: Candidate
    run: Run

    @property
    def said(self) -> str:
        """The change in the words of a report."""
        return f"`{self.change.old}` became `{self.change.new}`"


@dataclass(slots=True)
class Search:
    """A search in one function; `gives_up`: it ends without the right change, with room to try enough."""

    session: Session
    view: View
    broken: Broken
    pool: list[Candidate]
    right: Candidate
    tried: list[Candidate] = field(default_factory=list)
    others: bool = False
    """Whether there are more bugs: then the right change comes first, and another test fails after it."""
    gives_up: bool = False
    may_stop: bool = False
    raised: int = 0
    """The line of the function where an error was raised, or 0."""
    said: str = ""
    """What the failure says of the bug."""
    clue: str = ""
    """What decides for the right change."""
    failure: Failure = field(default_factory=lambda: Failure(""))

    def run(self, failure: Failure, why: str, target: str = "", python: str = "python") -> Tried:
        """Try until the test passes. The runs between print only whether it does: what a failure says costs
        the most. Raises Report when nothing is left to try.
        """
        self.failure, self.said = failure, symptom(failure.error)
        right = self.right
        self.clue = evidence(self.view.lines, right.line, right.old, right.new, failure)
        limit = MOST_WRONG if self.gives_up and not self.others else self._wrong_ones()
        places = [place[1] for place in own_places(failure) if place[0] == self.view.path]
        self.raised = places[-1] if places else 0
        lead = lead_to(why, self.said, self.clue)
        while True:
            wrong = self._next_wrong() if len(self.tried) < limit and self._has_room() else None
            if wrong is None and self.gives_up and len(self.tried) >= ENOUGH:
                raise self._nothing_left(lead)
            candidate = wrong or self.right
            self._try(candidate, lead, learn=wrong is None)
            run = self._test(QUIET, self.session.rng.choice(AGAIN), target, python)
            if wrong is None:
                return Tried(candidate, run if run.ok else self._other(failure, run, target, python))
            if run.ok:
                return Tried(candidate, run)
            self.tried.append(candidate)
            lead = self._still(run)

    def _wrong_ones(self) -> int:
        """How many wrong attempts come first: none, as a rule, where something says what to change."""
        rng, right = self.session.rng, self.right
        is_told = points_to(self.said, right.old, right.new) and rng.random() < POINTED
        is_told = is_told or (bool(self.clue) and rng.random() < DECIDED)
        return 0 if self.others or is_told else rng.choices(range(len(POSITIONS)), POSITIONS)[0]

    def _other(self, failure: Failure, run: Run, target: str, python: str) -> Run:
        """The run that shows what fails after the right change: another test, as a rule."""
        name = run.failures[0].name if run.failures else ""
        think = "See what fails now."
        if name and bare(name) != bare(failure.name):
            think = f"{bare(failure.name)} passes now, {bare(name)} fails. That is another bug: see it."
        return self._test(PYTEST + STOP, think, target, python)

    def _test(self, command: str, think: str, target: str, python: str) -> Run:
        """Run the tests with a thought."""
        command = command.replace("python", python, 1) + (f" {target}" if target else "")
        return parse_run(self.session.call("shell", think, command=command).text)

    def _has_room(self) -> bool:
        """Whether a wrong attempt, the right one and the report still fit."""
        session = self.session
        start, a_sign, a_message = TOKENS
        used = start + a_sign * session.size + a_message * len(session.messages)
        look = session.box.machine.look
        each = AN_ATTEMPT + (look.tokens if look else 0) + max(0, len(self.right.old) - 40)
        return session.max_chars >= LONG_SESSION or used + 2 * each + AN_END < FITTING

    def _next_wrong(self) -> Candidate | None:
        """A candidate that does not help, mostly in the line of the last one: that costs no edit back."""
        rng = self.session.rng
        left = [item for item in self.pool if item not in self.tried and self._follows(item)]
        last = self.tried[-1].line if self.tried else 0
        for _ in range(8):
            if not left:
                return None
            weights = [
                item.weight
                * (3.0 if item.line == last else 1.0)
                * (8.0 if item.line == self.raised else 1.0)
                * (4.0 if points_to(self.said, item.old, item.new) else 1.0)
                for item in left
            ]
            chosen = rng.choices(left, weights)[0]
            left.remove(chosen)
            if _is_sensible(self.broken, chosen, rng):
                return chosen
        return None

    def _follows(self, item: Candidate) -> bool:
        """Whether an attempt goes on as the thoughts say: no part is tried twice, a line that was left is
        left for good, and the right change can come after it.
        """
        right, lines = self.right, {one.line for one in self.tried}
        last = self.tried[-1].line if self.tried else 0
        if item.line != last and (item.line in lines or last == right.line):
            return False
        before = [one.new for one in self.tried if one.line == item.line]
        if not goes_on(item.old, before, item.new):
            return False
        return item.line != right.line or goes_on(right.old, [*before, item.new], right.new)

    def _still(self, run: Run) -> str:
        """That the same test fails, by its name, and what it says now: another name would be another bug."""
        found = run.failures[0] if run.failures else Failure("")
        name = bare(found.name) or "It"
        # pytest cuts what does not fit in a line
        if not found.error or found.error.endswith("...") or len(found.error) > LONGEST_ERROR:
            return f"{name} still fails."
        now, before = (text.removeprefix("AssertionError: ") for text in (found.error, self.failure.error))
        return f"{name} still fails{', as before' if now == before else f': {found.error}'}."

    def _so_far(self) -> str:
        """The line of the last attempt as it was, what was tried in it and which of its parts are left."""
        last = self.tried[-1]
        news = [item.new for item in self.tried if item.line == last.line]
        tried = ", ".join(said_of(last.old, new) for new in news)
        left = left_in(last.old, news)
        rest = f"; left: {', '.join(left)}" if 0 < len(left) <= MOST_PARTS else ""
        return f"Line {last.line} was {last.old} and {tried} did not help{rest}."

    def _lines_left(self, line: int) -> str:
        """The lines of the function that were not tried, a line and those near it, as a thought."""
        done = {item.line for item in self.tried}
        lines = sorted({item.line for item in (*self.pool, self.right)} - done)
        near = sorted(lines, key=lambda one: abs(one - line))[:MOST_LINES]
        return f"Left: line{'s' if len(near) > 1 else ''} {', '.join(map(str, sorted(near)))}."

    def _try(self, candidate: Candidate, lead: str, *, learn: bool) -> None:
        """Edit to a candidate; a wrong line of before is put back by the same edit or by one of its own.
        Wrong ones are not learned: a guess must be the likeliest.
        """
        session, path = self.session, self.view.path
        what = f"{difference(candidate.old, candidate.new)}: {candidate.new}"
        clue = f" {self.clue}" if learn and self.clue else ""
        if not self.tried:
            think = f"{lead}{clue} Line {candidate.line} has {candidate.old}. Try {what}"
            if learn:
                edit_text(session, path, candidate.old, candidate.new, think, line=candidate.line)
            else:
                self._edit(candidate.old, candidate.new, candidate.line, think, learn=False)
            return
        last = self.tried[-1]
        if session.slips and session.rng.random() < STRAY:
            lead = self._stray(last, lead)
        if candidate.line == last.line:
            think = f"{lead}{clue} {self._so_far()} Try {what}"
            self._edit(last.new, candidate.new, candidate.line, think, learn=learn)
            return
        back = f"{lead} Put line {last.line} back: it was {last.old}"
        self._edit(last.new, last.old, last.line, back)
        parts = [part.text for part in parts_of(candidate.old)]
        has = f"; parts: {', '.join(parts)}" if 0 < len(parts) <= MOST_PARTS else ""
        think = f"{self._lines_left(candidate.line)}{clue} Line {candidate.line} has {candidate.old}{has}."
        think = f"{think} Try {what}"
        self._edit(candidate.old, candidate.new, candidate.line, think, learn=learn)

    def _edit(self, old: str, new: str, line: int, think: str, *, learn: bool = True) -> None:
        result = self.session.call(
            "edit", think, learn=learn, path=self.view.path, old=old, new=new, line=line
        )
        if result.is_error:
            raise failed(self.view.path, result)

    def _stray(self, last: Candidate, lead: str) -> str:
        """An edit that is refused, not learned; the thought that goes on from there. Raises Report where it
        is made again and nothing comes after it.
        """
        rng = self.session.rng
        args: dict[str, Any] = {"path": self.view.path, "line": last.line}
        is_same = rng.random() < 0.5 or self.broken.bad.count(last.old) > 1
        is_same = is_same or last.old in last.new
        old, new = (last.new, last.new) if is_same else (last.old, last.new)
        think = f"{lead} Try {difference(last.old, last.new)}."
        result = self.session.call("edit", think, learn=False, old=old, new=new, **args)
        if not result.is_error:
            raise ValueError(f"a stray edit of {self.view.path} was not refused: {old!r} to {new!r}")
        if rng.random() < STUCK:
            self.session.call("edit", think, learn=False, old=old, new=new, **args)
            start = "The same call failed before: something else must change."
            if self.may_stop and len(self.tried) > 1 and rng.random() < 0.5:
                raise self._nothing_left(start)
            return start
        return "Old and new were the same." if is_same else f"Line {last.line} has {last.new} now."

    def _nothing_left(self, lead: str) -> Report:
        """Put the last attempt back; what is said then."""
        session, failure = self.session, self.failure
        last = self.tried[-1]
        back = f"{lead} I know no more. Put line {last.line} back: it was {last.old}"
        self._edit(last.new, last.old, last.line, back)
        session.gave_up = True
        start = f"`{failure.name}` fails: {failure.error}. I could not find the cause in `{self.view.path}`."
        tried = quoted([item.new for item in self.tried])
        return Report(
            "Nothing helped, and all is put back. Say so.",
            f"{start} I tried {tried}; it did not help, so I put everything back. Nothing is changed.",
        )


AGAIN = (
    "Run the tests again.",
    "Run the tests again.",
    "Does that help? Run the tests again.",
    "See whether that is it.",
)


def lead_to(why: str, said: str, clue: str) -> str:
    """A reason without the general word on types, where the clue says which part is of the wrong one."""
    return why.replace(f" {said}", "") if clue and said.startswith("A ") else why


def bare(name: str) -> str:
    """A test's name without its file and class."""
    return name.rsplit("::", 1)[-1].split("[")[0].rsplit(".", 1)[-1]


def _is_sensible(broken: Broken, candidate: Candidate, rng: random.Random) -> bool:
    """Whether the code with this change comes to an end, is as wrong as before (a test may hold any of the
    cases that fail) and, as a rule, does not fail for its
    types or names: who knows Python does not try that.
    """
    if "**" in candidate.new or "*= " in candidate.new:
        return False
    rows = broken.bad.split("\n")
    row = rows[candidate.line - 1]
    if row.strip() != candidate.old:
        return False
    rows[candidate.line - 1] = row[: len(row) - len(row.lstrip())] + candidate.new
    try:
        compile("\n".join(rows), broken.path, "exec")
    except SyntaxError:
        return False
    results, good, bad = (_results(broken, text) for text in ("\n".join(rows), broken.good, broken.bad))
    cases = zip(results, good, bad, strict=False)
    if ENDLESS in results or any(one == two != three for one, two, three in cases):
        return False
    is_odd = NONSENSE & set(results) and not NONSENSE & set(bad)
    return not is_odd or rng.random() < 0.06


def _results(broken: Broken, text: str) -> list[str]:
    """What the cases of the tests give with a text of the file."""
    if broken.sample is not None:
        return broken.sample.results(text)
    scope: dict[str, Any] = {}
    rows, name = text.split("\n"), broken.func.name
    start = next(index for index, row in enumerate(rows) if row.startswith(f"def {name}("))
    end = start + 1
    while end < len(rows) and (not rows[end].strip() or rows[end][:1] in (" ", "\t", ")")):
        end += 1
    try:
        exec("\n".join(rows[start:end]), scope)
    except Exception as error:
        return [type(error).__name__]
    return [outcome(scope[name], args) for args, _ in broken.func.cases]


def draw_search(
    session: Session, view: View, broken: Broken, *, may_stop: bool = False, others: bool = False
) -> Search | None:
    """A search for a bug in view, where the machine lets one try. `may_stop`: also one that finds nothing."""
    machine, bug = session.box.machine, broken.bug
    if machine.edits_denied or machine.shell_denied or not machine.has_pytest or bug.is_syntax:
        return None
    old, new = broken.wrong.strip(), broken.right.strip()
    if old == new or session.rng.random() >= SEARCHED:
        return None
    every = candidates_for(view.lines, broken.line)
    right = Candidate(broken.line, old, new, 1.0)
    pool = [item for item in every if (item.line, item.new) != (right.line, right.new)]
    share = GIVEN_UP if len(pool) < len(every) else UNLIKELY
    may_stop = may_stop and not others
    gives_up = may_stop and len(pool) >= LEAST and session.rng.random() < share
    return Search(session, view, broken, pool, right, others=others, gives_up=gives_up, may_stop=may_stop)


def is_evident(failure: Failure) -> bool:
    """Whether the error says what is wrong."""
    return bool(EVIDENT.match(failure.error))
