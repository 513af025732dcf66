"""When the context gets too long, requests begin with a summary instead of the oldest messages.

Nothing is deleted: a compaction is a row beside the transcript, made in one commit, and can be undone. The
summary comes from the model (the live request plus one message, so that its prefix is cached); where that
fails it is put together from the transcript.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from k3agent.agent import digest
from k3agent.agent.context import Context
from k3agent.agent.emitter import Emitter
from k3agent.agent.hooks import START, Hooks, told
from k3agent.agent.markers import mentions_marker
from k3agent.agent.options import Receipt
from k3agent.agent.policies import MANUAL, MIN_ROOM_TOKENS, CompactionPolicy
from k3agent.agent.step import Stepper
from k3agent.agent.tasks import load_pinned, load_todo, pin
from k3agent.agent.transcript import Transcript
from k3agent.errors import ProviderError
from k3agent.events import Compacted, Noticed
from k3agent.prompts.loader import load
from k3agent.providers.base import Profile
from k3agent.store.records import CompactionRow
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Message, Origin, Role

THRESHOLD = "threshold"
OVERFLOW = "overflow"
AHEAD = "ahead"
BY_MODEL = "model"
# Shares of the room that a compacted conversation has besides system prompt and tools, and their caps.
TAIL_SHARE, TAIL_TOKENS = 0.25, 40_000
WORDS_SHARE, WORDS_TOKENS = 0.15, 20_000
SUMMARY_SHARE, SUMMARY_TOKENS = 0.15, 16_000
# Of the window, what is left for the answer that is the summary.
ANSWER_SHARE = 0.05
STATE_SHARE, STATE_TOKENS = 0.05, 8_000
# What the model has not answered yet is kept also where it is longer than the tail.
LAST_SHARE = 0.5
# A compaction that leaves more than this share has freed too little.
MAX_LEFT = 0.9
MIN_ROOM = 500
# Between turns the context is made short from this share of the limit on, where that is done ahead.
AHEAD_SHARE = 0.9
# The engine keeps the state of a prompt where something follows that is said of one answer only, such as the
# form that it is to have: this tells it where the conversation so far ends.
BOUNDARY: JsonObject = {"type": "object"}
# An unanswered prompt that takes more than this share of the room leaves none for a compaction.
MAX_PROMPT_SHARE = 0.6
# Of a request that the endpoint found too long, this share will fit, unless it says what does.
REFUSED_SHARE = 0.75
_WINDOW = re.compile(r"(?:limit|length|size|window)\D{0,20}(\d{4,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorParts:
    """What the compactor works with. `jobs`: one line for each command that still runs."""

    store: SessionStore
    transcript: Transcript
    context: Context
    stepper: Stepper
    emitter: Emitter
    receipt: Receipt
    policy: CompactionPolicy
    profile: Profile
    jobs: Callable[[], list[str]]
    mask: Callable[[str], str]
    hooks: Hooks


class Compactor:
    """The compactions of one session."""

    def __init__(self, parts: CompactorParts) -> None:
        self._parts = parts
        self._id = parts.emitter.session_id
        # Set by the user: the context is made short before the next model call.
        self.is_wanted = False
        self.reload()

    def reload(self) -> None:
        """Take the compactions of this conversation from the store, and go on from the newest."""
        self._parts.context.compactions = self._parts.store.compactions(self._id)
        self._forget()

    @property
    def _messages(self) -> list[Message]:
        return self._parts.transcript.messages

    async def before_step(self, turn: int, *, may_ask: bool) -> str:
        """Compact if it is time. Returns why that no longer helps, or ''. `may_ask`: the model may be
        called.
        """
        parts, context = self._parts, self._parts.context
        if self.is_wanted:
            self.is_wanted = False
            problem = await self._compact(turn, MANUAL, self._limit(), may_ask=may_ask)
            if problem:
                parts.emitter.emit(Noticed, level="warning", text=f"Not compacted: {problem}.")
        limit = self.limit
        if limit is None or context.num_tokens(context.view(self._messages)) < limit:
            return ""
        problem = self._thrash()
        if problem or self._cut(context.view(self._messages), limit) == 0:
            return problem
        return await self._compact(turn, THRESHOLD, limit, may_ask=may_ask)

    async def ahead(self, turn: int) -> None:
        """Compact between turns if the next one would soon have to, and have the engine read the new
        beginning. Raises ProviderError.
        """
        parts, limit = self._parts, self.limit
        view = parts.context.view(self._messages)
        if limit is None or parts.context.num_tokens(view) < AHEAD_SHARE * limit:
            return
        if not parts.stepper.may_step() or self._thrash() or self._cut(view, limit) == 0:
            return
        if await self._compact(turn, AHEAD, limit, may_ask=True):
            return
        view = parts.context.view(self._messages)
        # A request asks for an answer, so it does not end with one.
        while view and view[-1].role is Role.ASSISTANT:
            view.pop()
        request = parts.context.request_of(view, max_output_tokens=1, is_live=False)
        await parts.stepper.warm(replace(request, response_schema=BOUNDARY), turn)

    async def after_overflow(self, turn: int, error: str, *, may_ask: bool) -> bool:
        """The endpoint found a request too long that should have fitted: its window is smaller than it was
        said to be. True: the conversation is shorter now, try again.
        """
        parts, context = self._parts, self._parts.context
        if self.limit is None:
            return False
        tokens = context.num_tokens(context.view(self._messages))
        said = [int(number) for number in _WINDOW.findall(error)]
        window = min([number for number in said if number < context.window] or [int(REFUSED_SHARE * tokens)])
        text = f"The endpoint refused a request of about {tokens:,} tokens: k3agent goes on with a window of"
        parts.emitter.emit(
            Noticed, level="warning", text=f"{text} {window:,}, not {context.window:,}. It said: {error}"
        )
        context.window = window
        problem = self._thrash() or await self._compact(turn, OVERFLOW, self._limit(), may_ask=may_ask)
        if problem:
            parts.emitter.emit(Noticed, level="warning", text=f"Not compacted: {problem}.")
        return not problem

    @property
    def limit(self) -> int | None:
        """The size in tokens at which the context is made short; None: never by itself."""
        return self._parts.policy.limit(self._parts.context.window)

    def undo(self) -> bool:
        """Go on with the whole conversation again, as it was before the newest compaction."""
        is_done = self._parts.store.undo_compaction(self._id)
        self._parts.transcript.recall()
        self.reload()
        return is_done

    def pin(self, fact: str) -> None:
        """Each later compaction carries this word by word."""
        pin(self._parts.store, self._id, self._parts.mask(fact))

    def _limit(self) -> int:
        return self.limit or self._parts.context.window - MIN_ROOM_TOKENS

    def _thrash(self) -> str:
        done = [row for row in self._parts.context.compactions if not row.is_undone]
        return self._parts.policy.thrash(done, self._messages)

    async def _compact(self, turn: int, cause: str, limit: int, *, may_ask: bool) -> str:
        """Returns what stands against it, or '' when it is done."""
        parts, context = self._parts, self._parts.context
        messages = self._messages
        view = context.view(messages)
        cut = self._cut(view, limit)
        has_head = context.active(messages) is not None
        if cut == 0:
            return "there is nothing that could be left out"
        before, known = context.num_tokens(view), context.compactions
        names = ("manual" if cause == MANUAL else "auto", cause)
        await parts.hooks.run("PreCompact", names, trigger=names[0], cause=cause, tokens_before=before)
        summary, method, cost = await self._summary(turn, view, cut, limit, may_ask=may_ask)
        if context.compactions is not known:
            return "an earlier compaction was undone meanwhile"
        head = self._head(summary, messages[: len(messages) - len(view) + cut], limit)
        row = CompactionRow(
            cause=cause,
            message=head,
            summary=summary,
            method=method,
            last_dropped=view[cut - 1].id,
            leaf=messages[-1].id,
            num_dropped=cut - has_head,
            num_kept=len(view) - cut,
            tokens_before=before,
            tokens_after=context.guess_tokens([head, *view[cut:]]),
            cost_usd=cost,
        )
        if row.tokens_after >= limit or row.tokens_after > MAX_LEFT * context.guess_tokens(view):
            return (
                f"making the context short frees too little: about {row.tokens_after:,} of {before:,} tokens"
                f" would be left, and the limit is {limit:,}. Use a model with a larger window"
            )
        parts.store.add_compaction(self._id, row)
        context.compactions.append(row)
        self._forget()
        self._tell(row)
        # What hooks told of at the session's start may be among what was left out.
        outcome = await parts.hooks.run(START, ("compact",), source="compact")
        if outcome.context and parts.profile is Profile.FULL:
            parts.transcript.add(parts.transcript.harness(told(outcome.context)))
        return ""

    def _forget(self) -> None:
        """What no request needs again stays in the store alone, so that memory does not grow with the turns.
        Kept is what the next look for thrash looks at.
        """
        context, transcript = self._parts.context, self._parts.transcript
        active = context.active(transcript.messages)
        if active is None:
            return
        at = {message.id: index for index, message in enumerate(transcript.messages)}
        rows = [row for row in context.compactions if not row.is_undone and row.leaf in at]
        own = [at[row.leaf] for row in rows if row.cause != MANUAL]
        transcript.forget(min([at[active.last_dropped], *own[-2:-1]]))
        left = {message.id for message in transcript.messages}
        context.compactions = [row for row in rows if row.leaf in left]

    def _tell(self, row: CompactionRow) -> None:
        same = {
            "trigger": row.cause,
            "tokens_before": row.tokens_before,
            "tokens_after": row.tokens_after,
            "method": row.method,
            "cost_usd": row.cost_usd,
        }
        self._parts.receipt.compactions.append({**same, "kept": row.num_kept, "dropped": row.num_dropped})
        told = {**same, "trigger": "manual" if row.cause == MANUAL else "auto", "cause": row.cause}
        told.update(kept=row.num_kept, dropped=row.num_dropped, compact_summary=row.summary)
        self._parts.hooks.start("PostCompact", (told["trigger"], row.cause), **told)
        self._parts.emitter.emit(Compacted, **same, num_kept=row.num_kept, num_dropped=row.num_dropped)

    # --- what is kept -------------------------------------------------------------------------------------

    def _share(self, limit: int, share: float, most: int) -> int:
        """So many tokens of the room besides what every request carries."""
        return min(most, int(share * self._room(limit)))

    def _room(self, limit: int) -> int:
        return max(0, limit - self._parts.context.fixed_tokens)

    def _cut(self, view: Sequence[Message], limit: int) -> int:
        """Where the tail begins: never between a call and its results. 0: nothing of the model's work can be
        left out.
        """
        sizes = [self._parts.context.message_tokens(message) for message in view]
        tail = self._share(limit, TAIL_SHARE, TAIL_TOKENS)
        last = int(LAST_SHARE * self._room(limit))
        first = int(self._parts.context.active(self._messages) is not None)
        answers = [at for at, message in enumerate(view) if message.role is Role.ASSISTANT and at >= first]
        if self._room(limit) < MIN_ROOM or not answers:
            return 0
        # A prompt that was not answered yet is not made shorter: it is the user's to do.
        asked = next(
            (at for at in range(answers[-1], len(view)) if view[at].origin is Origin.HUMAN), len(view)
        )
        if sum(sizes[asked:]) > MAX_PROMPT_SHARE * self._room(limit):
            return 0
        start, total = len(view), 0
        for at in range(len(view) - 1, first - 1, -1):
            total += sizes[at]
            if at < asked and total > (last if at >= answers[-1] else tail):
                break
            if view[at].role is not Role.TOOL:
                start = at
        # A tail of whole turns, if that is not much shorter.
        human = next((at for at in range(start, len(view)) if view[at].origin is Origin.HUMAN), start)
        start = human if 2 * sum(sizes[human:]) >= sum(sizes[start:]) else start
        return start if start > answers[0] else 0

    def _head(self, summary: str, dropped: Sequence[Message], limit: int) -> Message:
        """The message that stands for what was left out."""
        parts, chars = self._parts, self._parts.context.num_chars
        most = chars(self._share(limit, WORDS_SHARE, WORDS_TOKENS))
        words = digest.user_words(dropped, most, parts.transcript.words_before)
        pinned = load_pinned(parts.store, self._id)
        state = digest.state(
            facts=parts.transcript.facts,
            todo=load_todo(parts.store, self._id),
            jobs=parts.jobs(),
            files=parts.store.changed_files(self._id),
            num_chars=chars(self._share(limit, STATE_SHARE, STATE_TOKENS)),
        )
        return parts.transcript.harness(digest.head(summary, words, pinned, state))

    # --- the summary --------------------------------------------------------------------------------------

    async def _summary(
        self, turn: int, view: list[Message], cut: int, limit: int, *, may_ask: bool
    ) -> tuple[str, str, float]:
        """(text, method, cost in USD)"""
        parts = self._parts
        most = parts.context.num_chars(self._share(limit, SUMMARY_SHARE, SUMMARY_TOKENS))
        # A small model would invent; a request cannot be paid or not be answered.
        why = "small model" if parts.profile is Profile.COMPACT else "limits of the run"
        if may_ask and parts.profile is Profile.FULL:
            parts.emitter.emit(Noticed, level="info", text="The context is full: a summary is being written.")
            try:
                text, cost = await self._ask(turn, view, limit)
                if parts.transcript.knows_markers or not mentions_marker(text):
                    return digest.shortened(text, most), BY_MODEL, cost
                why = "the summary held channel markers"
            except ProviderError as error:
                why = parts.mask(str(error))
            parts.emitter.emit(
                Noticed, level="warning", text=f"The summary is made without the model: {why}."
            )
        return self._mechanical(view[:cut], most), f"mechanical: {why}", 0.0

    async def _ask(self, turn: int, view: list[Message], limit: int) -> tuple[str, float]:
        parts, context = self._parts, self._parts.context
        ask = parts.transcript.harness(load("compaction/ask"))
        fitting = self._fitting(view, limit, context.message_tokens(ask))
        request = context.request_of(
            [*fitting, ask], max_output_tokens=SUMMARY_TOKENS, is_live=fitting is view
        )
        request = replace(request, response_schema=None)
        return await parts.stepper.ask(request, turn)

    def _fitting(self, view: list[Message], limit: int, ask_tokens: int) -> list[Message]:
        """The live messages; where they and an answer do not fit, the oldest are replaced by a digest."""
        context = self._parts.context
        answer = min(SUMMARY_TOKENS, int(ANSWER_SHARE * context.window))
        if context.num_tokens(view) + ask_tokens + answer <= context.window:
            return view
        most = self._share(limit, SUMMARY_SHARE, SUMMARY_TOKENS)
        room = context.window - context.fixed_tokens - ask_tokens - answer - most - MIN_ROOM_TOKENS
        starts = [at for at in range(1, len(view) + 1) if at == len(view) or view[at].role is not Role.TOOL]
        sizes = [context.message_tokens(message) for message in view]
        left = list(itertools.accumulate(reversed(sizes), initial=0))[::-1]
        start = next(at for at in starts if left[at] <= room or at == len(view))
        text = self._mechanical(view[:start], context.num_chars(most))
        return [self._parts.transcript.harness(text), *view[start:]]

    def _mechanical(self, dropped: Sequence[Message], most: int) -> str:
        """A summary of what was done, without a model. An earlier summary stays in it."""
        active = self._parts.context.active(self._messages)
        earlier = "" if active is None else digest.shortened(active.summary, most // 2)
        steps = digest.steps(dropped[active is not None :], most - len(earlier))
        return "\n\n".join(part for part in (earlier, steps) if part)
