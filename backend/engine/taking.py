"""Decides what a sequence says next from the logits of a pass, and whether its answer is over.

With a guess behind the decided tokens a pass gives several rows of logits. Each row is used as a pass of its
own would have been: sampled, or passed over where the grammar leaves no choice; the first token that differs
from the guess ends the walk. So the answer is the same with and without guesses.
"""

from dataclasses import dataclass, field

from torch import Tensor

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.grammar import Free
from k3agent.backend.engine.messages import FinishReason, TokenLogprobs
from k3agent.backend.engine.sampler import Draw, Sampler, forced_logprobs
from k3agent.backend.engine.sequence import Sequence

ENDS = ("<|end_of_msg|>", "[EOS]")


@dataclass(slots=True)
class Taken:
    """Tokens to add to the answer; the first `num_right` guessed ones were right."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    num_right: int = 0
    reason: FinishReason | None = None


class TokenTaker:
    """Adds tokens to sequences, one pass after another."""

    def __init__(self, tokenizer: Tokenizer, sampler: Sampler, max_model_len: int) -> None:
        self._sampler = sampler
        self._max_model_len = max_model_len
        self._ends = frozenset(i for name in ENDS if (i := tokenizer.special_tokens.get(name)) is not None)
        self._closers = self._ends | {tokenizer.special("<|close|>")}

    def take(
        self, sequence: Sequence, rows: Tensor, guess: list[int], at_once: list[int] | None = None
    ) -> Taken:
        """rows: [1 + len(guess), V], logits after the decided tokens and after each guessed one; `at_once` is
        what the method of that name gave for them.
        """
        taken = Taken(logprobs=None if sequence.params.logprobs is None else [])
        place = 0
        while taken.reason is None:
            if at_once is not None and self._is_plain(sequence):
                new = self._add(sequence, [at_once[place]], taken, None)
            else:
                new = self._next(sequence, rows[place], taken)
            right = _num_common(new, guess[place:])
            taken.num_right = place + right
            place += len(new)
            if right < len(new) or place > len(guess):
                break
        return taken

    def at_once(self, sequences: list[Sequence], counts: list[int], logits: Tensor) -> list[int] | None:
        """The token of each row of plain sequences, found for all rows at once; `counts`: rows of each
        sequence. None if no sequence is plain."""
        if not any(self._is_plain(sequence) for sequence in sequences):
            return None
        draws: list[Draw | None] = []
        for sequence, count in zip(sequences, counts, strict=True):
            is_drawn = self._is_plain(sequence) and not sequence.choice.is_plain
            begin = len(sequence.token_ids)
            draws += [Draw(sequence.choice, begin + row) if is_drawn else None for row in range(count)]
        return self._sampler.draw(logits, draws)

    def _is_plain(self, sequence: Sequence) -> bool:
        """Do the logits alone say what comes next: the likeliest, or a draw that the device can make?"""
        params, choice = sequence.params, sequence.choice
        may_end = not params.ignore_eos and sequence.num_generated >= params.min_tokens
        is_simple = choice.is_plain or (choice.is_free and self._sampler.draws_together)
        return sequence.grammar is None and is_simple and may_end

    def _next(self, sequence: Sequence, logits: Tensor, taken: Taken) -> list[int]:
        """Choose one token and add it and what the grammar forces after it; returns what was added."""
        grammar, params = sequence.grammar, sequence.params
        allowed = grammar.allowed if grammar else None
        banned: frozenset[int] = frozenset()
        is_early = sequence.num_generated < params.min_tokens
        if params.ignore_eos or is_early:
            # with a grammar an answer begins to end where free text is closed
            banned = self._closers if isinstance(allowed, Free) else self._ends
        if is_early:
            banned |= frozenset(params.stop_token_ids)
        chosen = self._sampler.sample(logits, sequence.choice, allowed, banned)
        new, logprobs = [chosen.token_id], [chosen.logprobs] if chosen.logprobs else None
        if grammar is not None:
            grammar.advance(chosen.token_id)
            forced = grammar.forced()
            new += forced
            if logprobs is not None:
                logprobs += forced_logprobs(forced)
        return self._add(sequence, new, taken, logprobs)

    def _add(
        self, sequence: Sequence, new: list[int], taken: Taken, logprobs: list[TokenLogprobs] | None
    ) -> list[int]:
        params = sequence.params
        room = min(params.max_tokens - sequence.num_generated, self._max_model_len - len(sequence.token_ids))
        num_kept, reason = self._end(sequence, new[:room])
        kept = new[:num_kept]
        if reason is None and len(kept) == room:
            reason = "length"
        taken.reason = reason
        taken.token_ids += kept
        if taken.logprobs is not None and logprobs is not None:
            taken.logprobs += logprobs[:num_kept]
        sequence.choice.took(kept)
        sequence.token_ids += kept
        return kept

    def _end(self, sequence: Sequence, new: list[int]) -> tuple[int, FinishReason | None]:
        """How many of the new tokens are said, and why the answer ends there if it does."""
        params = sequence.params
        for count, token_id in enumerate(new, 1):
            if token_id in self._ends and not (params.ignore_eos and sequence.grammar is None):
                return count, "stop"
            if token_id in params.stop_token_ids:
                sequence.stop_token_id = token_id
                return count, "stop"
            if sequence.stops is not None:
                found = sequence.stops.feed(token_id)
                if found is not None:
                    sequence.stop_text = found
                    return count, "stop"
        return len(new), None


def _num_common(a: list[int], b: list[int]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
