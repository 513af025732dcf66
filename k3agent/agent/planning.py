"""Keeps the model's plan honest: what was asked stays beside what the model made of it, and a step that is
done has calls that show it.

The goal and its criteria stand once they are stated. Adding criteria is free; any other change is the user's
to make until the user says something new, and is refused where nobody can be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from k3agent.agent.approvals import Approvals
from k3agent.agent.emitter import Emitter
from k3agent.agent.tasks import Goal, PlanStep, load_goals, load_steps, save_goal, save_steps
from k3agent.agent.transcript import Transcript
from k3agent.errors import ToolError
from k3agent.events import Noticed
from k3agent.store.records import CallRow, CallState
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Message

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Planning

ENDED_WELL = "[exit code 0]"
MAX_EVIDENCE = 5
MAX_WHAT = 200


class Planner:
    """The plan of one session."""

    def __init__(
        self, store: SessionStore, transcript: Transcript, approvals: Approvals, emitter: Emitter
    ) -> None:
        self._store = store
        self._transcript = transcript
        self._approvals = approvals
        self._emitter = emitter
        self._session_id = emitter.session_id

    def for_call(self, call_id: str) -> Planning:
        """What the call `call_id` changes the plan with."""

        async def plan(goal: str, criteria: Sequence[str], steps: list[JsonObject]) -> list[str]:
            await self._state_goal(call_id, goal, criteria)
            return self._keep_steps(steps)

        return plan

    # --- goal ---------------------------------------------------------------------------------------------

    async def _state_goal(self, call_id: str, goal: str, criteria: Sequence[str]) -> None:
        asked = self._asked()
        if asked is None or not (goal or criteria):
            return
        goals = load_goals(self._store, self._session_id)
        stated = next((one for one in goals if one.message_id == asked.id), None)
        if stated is None:
            new = Goal(
                number=len(goals) + 1,
                ask=asked.text,
                message_id=asked.id,
                goal=goal,
                criteria=tuple(criteria),
            )
            save_goal(self._store, self._session_id, new)
            self._tell("info", f"Understood as: {new.goal or '; '.join(new.criteria)}", new)
            return
        # What is left out of a later list is not taken back.
        new_goal = goal or stated.goal
        new_criteria = tuple(criteria) or stated.criteria
        if (new_goal, new_criteria) == (stated.goal, stated.criteria):
            return
        by = "model"
        if (stated.goal and new_goal != stated.goal) or not set(stated.criteria) <= set(new_criteria):
            await self._ask_user(call_id, stated, new_goal, new_criteria)
            by = "user"
        before: JsonObject = {"goal": stated.goal, "criteria": list(stated.criteria), "changed_by": by}
        changed = Goal(
            number=stated.number,
            ask=stated.ask,
            message_id=stated.message_id,
            goal=new_goal,
            criteria=new_criteria,
            history=(*stated.history, before),
        )
        save_goal(self._store, self._session_id, changed)
        self._tell("info", f"The goal is now: {new_goal} ({len(new_criteria)} criteria)", changed)

    async def _ask_user(self, call_id: str, stated: Goal, goal: str, criteria: tuple[str, ...]) -> None:
        """Returns if the user agrees to the change. Raises ToolError if not, or where nobody is there."""
        dropped = [one for one in stated.criteria if one not in criteria]
        change = [f"the goal “{stated.goal}” becomes “{goal}”"] if goal != stated.goal else []
        change += [f"the criterion “{one}” is dropped" for one in dropped]
        words = "; ".join(change)
        data: JsonObject = {"ask": stated.ask, "goal": goal, "dropped": dropped}
        self._emitter.emit(
            Noticed, level="warning", text=f"The model wants to change what it works for: {words}.", data=data
        )
        text = f"The model wants to change what it works for: {words}. You asked: {stated.ask}"
        try:
            answer = await self._approvals.question(call_id, text, ("yes", "no"))
        except ToolError as error:
            raise ToolError(
                f"{words}: that is for the user to decide, and nobody can be asked here. Keep to the goal"
                f" “{stated.goal}” and its criteria; report at the end what could not be met."
            ) from error
        if answer.strip().casefold() not in ("yes", "y"):
            raise ToolError(f"{words}: the user does not want that: {answer}")

    def _asked(self) -> Message | None:
        """The user's newest words: with them the goal may be stated anew."""
        return self._transcript.asked

    def _tell(self, level: str, text: str, goal: Goal) -> None:
        data: JsonObject = {"ask": goal.ask, "goal": goal.goal, "criteria": list(goal.criteria)}
        self._emitter.emit(Noticed, level=level, text=text, data=data)

    # --- steps --------------------------------------------------------------------------------------------

    def _keep_steps(self, items: list[JsonObject]) -> list[str]:
        """Store the steps, each newly done one with what shows it. Returns remarks for the model."""
        old = {step.text: step for step in load_steps(self._store, self._session_id)}
        # Calls that were made before every step that is still open are not looked at again.
        skip = min((step.since for step in old.values() if step.status != "done"), default=0)
        rows = self._store.calls(self._session_id, skip=skip)
        steps = [_step(item, old.get(str(item["text"])), rows, skip) for item in items]
        self._tell_dropped(old, steps)
        save_steps(self._store, self._session_id, steps)
        bare = [
            number
            for number, step in enumerate(steps, 1)
            if step.status == "done" and not step.evidence and not _was_done(old.get(step.text))
        ]
        if not bare:
            return []
        names = ", ".join(map(str, bare))
        verb = "is" if len(bare) == 1 else "are"
        return [
            f"[step{'s' if len(bare) > 1 else ''} {names} {verb} done by your word alone: no call shows it]"
        ]

    def _tell_dropped(self, old: dict[str, PlanStep], steps: list[PlanStep]) -> None:
        """A plan that got shorter by steps that were not done; rewording is no news."""
        kept = {step.text for step in steps}
        dropped = [text for text, step in old.items() if text not in kept and step.status != "done"]
        if len(dropped) > sum(step.text not in old for step in steps):
            words = "; ".join(dropped)
            data: JsonObject = {"dropped": dropped}
            self._emitter.emit(
                Noticed,
                level="warning",
                text=f"Dropped from the plan without being done: {words}.",
                data=data,
            )


def _was_done(step: PlanStep | None) -> bool:
    return step is not None and step.status == "done"


def _step(item: JsonObject, old: PlanStep | None, rows: list[CallRow], skip: int) -> PlanStep:
    """`rows`: the calls of the session but for the first `skip`."""
    status = str(item["status"])
    # A step begins when the plan first says so, or with the plan before it is done.
    was_begun = old is not None and old.status != "pending"
    since = old.since if old is not None and (was_begun or status == "done") else skip + len(rows)
    evidence = old.evidence if old is not None and _was_done(old) else ()
    if status == "done" and not _was_done(old):
        evidence = _shown_by(rows[max(0, since - skip) if old is not None else 0 :])
    return PlanStep(
        text=str(item["text"]),
        status=status,
        after=tuple(item.get("after", ())),
        since=since,
        evidence=evidence if status == "done" else (),
    )


def _shown_by(rows: Sequence[CallRow]) -> tuple[JsonObject, ...]:
    """The newest calls that changed something, ran well, or were subagents' work."""
    found: list[JsonObject] = []
    for row in rows:
        if row.state is not CallState.DONE or row.result is None or row.tool == "todo":
            continue
        command = row.access.get("runs")
        if command is not None and row.result.text.rstrip().endswith(ENDED_WELL):
            what = f"$ {command}"
        elif row.files:
            what = f"changed {', '.join(row.files)}"
        elif row.tool == "task":
            what = row.result.text.partition("\n")[0]
        elif row.access.get("reads"):
            what = f"{row.tool} {', '.join(row.access['reads'])}"
        else:
            continue
        found.append({"call_id": row.call_id, "tool": row.tool, "what": what[:MAX_WHAT]})
    return tuple(found[-MAX_EVIDENCE:])
