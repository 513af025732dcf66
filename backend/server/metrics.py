"""Counters of the server and of its engine as Prometheus text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from k3agent.backend.server.assembly import Done

_LATENCY = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_RATES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)

# flat names of the engine that are one family here: beginning, name of the family, label, is it a sum
_FAMILIES = (
    ("hit_tokens_", "prefix_hit_tokens", "tier", True, "Prompt tokens found in the cache"),
    ("lost_tokens_", "prefix_lost_tokens", "cause", True, "Prompt tokens that a hit could have spared"),
    ("checkpoint_bytes_", "checkpoint_bytes", "class", False, "Bytes of saved states"),
    ("tier_bytes_", "cache_tier_bytes", "tier", False, "Bytes of cached prefixes"),
)
# what of the rest only grows
_SUMS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")
_SUM_BEGINNINGS = (
    *("queried_", "evicted_", "preempted_", "draft_", "accepted_", "canonical_", "ignored_", "lost_"),
)


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float] = _LATENCY) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._total = 0
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._total += 1
        self._sum += value
        for place, bound in enumerate(self._bounds):
            self._counts[place] += value <= bound

    def lines(self, name: str, text: str) -> list[str]:
        lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        for bound, count in zip(self._bounds, self._counts, strict=True):
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {count}')
        lines.append(f'{name}_bucket{{le="+Inf"}} {self._total}')
        return [*lines, f"{name}_sum {self._sum:.6f}", f"{name}_count {self._total}"]


class Metrics:
    """What the server counts itself; the engine's sums and levels are passed in."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.tokens_by_reason: Counter[str] = Counter()
        self.damaged_answers = 0
        self.dropped_readers = 0
        self.active = 0
        self.open_chats = 0
        self.first_token_s = Histogram()
        self.between_tokens_s = Histogram(_PER_TOKEN)
        self.queued_s = Histogram()
        self.whole_s = Histogram()
        self.prefill_rate = Histogram(_RATES)
        self.decode_rate = Histogram(_RATES)

    def ended(self, done: Done, seconds: float) -> None:
        """Count an answer that has come to its end."""
        self.whole_s.add(seconds)
        self.finish_reasons[done.finish_reason] += 1
        self.tokens_by_reason[done.finish_reason] += done.usage["completion_tokens"]
        # a cut answer may well end inside its markup
        self.damaged_answers += bool(done.damage) and done.finish_reason != "length"
        finished = done.finished
        if finished is None:
            return
        self.queued_s.add(finished.queued_s)
        num_prefilled = finished.num_prompt - finished.num_cached
        if finished.prefill_s > 0 and num_prefilled > 0:
            self.prefill_rate.add(num_prefilled / finished.prefill_s)
        if finished.decode_s > 0 and finished.num_generated > 1:
            self.decode_rate.add((finished.num_generated - 1) / finished.decode_s)

    def text(self, engine: Mapping[str, float], num_restarts: int, is_ready: bool) -> str:
        lines = _family("http_answers_total", "HTTP answers by status", "status", self.answers.items())
        lines += _family("finish_total", "Answers by finish reason", "reason", self.finish_reasons.items())
        lines += _family(
            "finish_tokens_total",
            "Generated tokens of answers by finish reason",
            "reason",
            self.tokens_by_reason.items(),
        )
        plain = dict(engine)
        for beginning, name, label, is_sum, text in _FAMILIES:
            members = {key: plain.pop(key) for key in list(plain) if key.startswith(beginning)}
            values = [(key.removeprefix(beginning), value) for key, value in members.items()]
            lines += _family(f"{name}_total" if is_sum else name, text, label, values)
        values = {
            "damaged_answers_total": self.damaged_answers,
            "dropped_readers_total": self.dropped_readers,
            "active_requests": self.active,
            "open_chats": self.open_chats,
            "engine_restarts_total": num_restarts,
            "engine_ready": int(is_ready),
            **{f"engine_{name}{'_total' if _is_sum(name) else ''}": value for name, value in plain.items()},
        }
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE k3agent_{name} {kind}", f"k3agent_{name} {_number(value)}"]
        lines += self.first_token_s.lines("k3agent_first_token_seconds", "Time to the first token")
        lines += self.between_tokens_s.lines("k3agent_inter_token_seconds", "Time from token to token")
        lines += self.queued_s.lines("k3agent_queue_seconds", "Time before a request is begun")
        lines += self.whole_s.lines("k3agent_answer_seconds", "Time of whole answers")
        lines += self.prefill_rate.lines("k3agent_prefill_tokens_per_second", "Prefill of one request")
        lines += self.decode_rate.lines("k3agent_decode_tokens_per_second", "Decoding of one request")
        return "\n".join(lines) + "\n"


def _is_sum(name: str) -> bool:
    return name in _SUMS or name.startswith(_SUM_BEGINNINGS)


def _family(name: str, text: str, label: str, values: Iterable[tuple[object, float]]) -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP k3agent_{name} {text}", f"# TYPE k3agent_{name} {kind}"]
    for key, value in sorted(values, key=lambda pair: str(pair[0])):
        lines.append(f'k3agent_{name}{{{label}="{key}"}} {_number(value)}')
    return lines


def _number(value: float) -> str:
    """Large counts in full: `%g` would round them, and then they would not seem to grow."""
    return str(int(value)) if float(value).is_integer() else f"{value:.6f}"
