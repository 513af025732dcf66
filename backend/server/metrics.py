"""Counters of the server as Prometheus text."""

from collections import Counter
from collections.abc import Mapping

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SUMS = {"requests", "prompt_tokens", "cached_tokens", "generated_tokens"}


class Histogram:
    """Counts of durations by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKETS)
        self.total = 0
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.total += 1
        self.sum_s += seconds
        for place, bound in enumerate(_BUCKETS):
            self.counts[place] += seconds <= bound

    def lines(self, name: str, text: str) -> list[str]:
        lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        for bound, count in zip(_BUCKETS, self.counts, strict=True):
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {count}')
        lines.append(f'{name}_bucket{{le="+Inf"}} {self.total}')
        return [*lines, f"{name}_sum {self.sum_s:.6f}", f"{name}_count {self.total}"]


class Metrics:
    """What the server counts itself; the engine's sums and levels are passed in."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.damaged_answers = 0
        self.active = 0
        self.first_token_s = Histogram()
        self.whole_s = Histogram()

    def text(self, engine: Mapping[str, float], num_restarts: int, is_ready: bool) -> str:
        lines = [
            "# HELP k3agent_http_answers_total HTTP answers by status",
            "# TYPE k3agent_http_answers_total counter",
        ]
        lines += [
            f'k3agent_http_answers_total{{status="{status}"}} {count}'
            for status, count in sorted(self.answers.items())
        ]
        lines += [
            "# HELP k3agent_finish_total Answers by finish reason",
            "# TYPE k3agent_finish_total counter",
        ]
        lines += [
            f'k3agent_finish_total{{reason="{reason}"}} {count}'
            for reason, count in sorted(self.finish_reasons.items())
        ]
        values = {
            "damaged_answers_total": self.damaged_answers,
            "active_requests": self.active,
            "engine_restarts_total": num_restarts,
            "engine_ready": int(is_ready),
            **{f"engine_{name}{'_total' if name in _SUMS else ''}": value for name, value in engine.items()},
        }
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE k3agent_{name} {kind}", f"k3agent_{name} {value:g}"]
        lines += self.first_token_s.lines("k3agent_first_token_seconds", "Time to the first token")
        lines += self.whole_s.lines("k3agent_answer_seconds", "Time of whole answers")
        return "\n".join(lines) + "\n"
