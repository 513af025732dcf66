"""Curves of a run as one picture: loss, accuracy, expert load, speed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_log(file: Path) -> list[dict[str, Any]]:
    """The records of log.jsonl; a last line cut short by a kill is left out."""
    records = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def _column(records: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    found = [(record["tokens"] / 1e6, record[name]) for record in records if record.get(name) is not None]
    return [x for x, _ in found], [y for _, y in found]


def draw(records: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write a PNG. `records` are those of log.jsonl, in order."""
    import matplotlib  # lazy: only a training run needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot  # lazy: after the backend is chosen

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    panels = (
        (axes[0][0], "loss", ("assistant_loss", "eval_loss", "heldout_loss"), True),
        (axes[0][1], "wrong assistant tokens", ("assistant_error", "eval_error", "heldout_error"), True),
        (axes[1][0], "busiest expert / mean", ("imbalance_max", "imbalance_mean"), False),
        (axes[1][1], "tokens per second", ("tokens_per_s",), False),
    )
    for axis, title, names, is_log in panels:
        for name in names:
            axis.plot(*_column(records, name), label=name, linewidth=1.2)
        if is_log:
            axis.set_yscale("log")
        axis.set_title(title)
        axis.set_xlabel("million tokens")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        for record in records:
            if record.get("event") == "rounding on":
                axis.axvline(record["tokens"] / 1e6, color="grey", linestyle=":", linewidth=1)
    figure.savefig(target, dpi=110)
    pyplot.close(figure)
