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


def draw_ablation(curves: Mapping[str, Sequence[tuple[int, float, float]]], target: Path) -> None:
    """Write a PNG of rows (tokens, loss, busiest expert over the mean), a line for each name."""
    import matplotlib  # lazy: only a training run needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot  # lazy: after the backend is chosen

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for axis, title, column in ((axes[0], "assistant loss", 1), (axes[1], "busiest expert / mean", 2)):
        for number, (name, curve) in enumerate(curves.items()):
            tokens = [point[0] / 1e6 for point in curve]
            width = 2.2 if number == 0 else 1.0
            axis.plot(tokens, [point[column] for point in curve], label=name, linewidth=width)
        axis.set(title=title, xlabel="million tokens", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(target, dpi=110)
    pyplot.close(figure)
