"""Log-probabilities of an answer's tokens as the API shows them, each with the text that it belongs to.

Only tokens of the reasoning and of the content are told; those of markup and of calls have no place in the
API. The field `reasoning_content` beside `content` is an extension.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from k3agent.backend.chat.parser import Event, OutputParser, ReasoningDelta, ReasoningWasText, TextDelta
from k3agent.backend.chat.template import Json
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.messages import TokenLogprobs

# what JSON can carry instead of minus infinity
_LEAST = -9999.0


@dataclass(frozen=True, slots=True)
class Scored:
    """An event of text with the entries of its tokens."""

    event: ReasoningDelta | TextDelta | ReasoningWasText
    entries: list[Json]


class LogprobsWriter:
    """Feeds a parser token by token and ties each token's entry to the text that came of it."""

    def __init__(self, tokenizer: Tokenizer, parser: OutputParser) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._waiting: list[Json] = []

    def feed(self, ids: Sequence[int], scores: Sequence[TokenLogprobs]) -> Iterator[Event | Scored]:
        for token_id, score in zip(ids, scores, strict=True):
            if self._parser.channel is not None and not self._tokenizer.is_special(token_id):
                self._waiting.append(self._entry(score))
            for event in self._parser.feed([token_id]):
                yield self.scored(event)

    def scored(self, event: Event) -> Event | Scored:
        """The event with the entries that wait for it; tokens whose text is held back wait on."""
        if not isinstance(event, ReasoningDelta | TextDelta | ReasoningWasText):
            return event
        entries, self._waiting = self._waiting, []
        return Scored(event, entries)

    def _entry(self, score: TokenLogprobs) -> Json:
        top = [self._one(token_id, value) for token_id, value in score.top]
        return {**self._one(score.token_id, score.logprob), "top_logprobs": top}

    def _one(self, token_id: int, logprob: float) -> Json:
        data = self._tokenizer.token_bytes(token_id)
        return {
            "token": data.decode("utf-8", errors="replace"),
            "logprob": max(logprob, _LEAST),
            "bytes": list(data),
        }


@dataclass(slots=True)
class AnswerLogprobs:
    """The entries of a whole answer by channel."""

    content: list[Json] = field(default_factory=list)
    reasoning: list[Json] = field(default_factory=list)

    def add(self, scored: Scored) -> None:
        match scored.event:
            case ReasoningDelta():
                self.reasoning += scored.entries
            case TextDelta():
                self.content += scored.entries
            case ReasoningWasText():
                self.content, self.reasoning = [*self.reasoning, *scored.entries], []

    def body(self) -> Json:
        return {"content": self.content, "reasoning_content": self.reasoning, "refusal": None}


def chunk_body(scored: Scored) -> Json:
    """The `logprobs` of one chunk."""
    alone = AnswerLogprobs()
    alone.add(scored)
    return alone.body()
