"""Rows of a measurement as table, JSON and picture."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from k3agent import __version__
from k3agent.backend.bench.client import BenchError
from k3agent.backend.bench.measure import Row

_HEADS = ("phase", "context", "users", "prompt", "cached", "first token", "prefill", "decode", "all users")
_UNITS = ("", "tokens", "", "tokens", "tokens", "s", "tokens/s", "tokens/s", "tokens/s")


def table(rows: Sequence[Row]) -> str:
    """One line for each row, under two lines of heads."""
    cells = [_HEADS, _UNITS]
    for row in rows:
        cells.append(
            (
                row.phase,
                str(row.context),
                str(row.users),
                str(row.prompt_tokens),
                str(row.cached_tokens),
                f"{row.first_token_s:.3f}",
                f"{row.prefill_tokens_per_s:.0f}",
                f"{row.decode_tokens_per_s:.1f}",
                f"{row.total_decode_tokens_per_s:.1f}",
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def as_json(model: str, rows: Sequence[Row], **more: Any) -> str:
    """The rows with what they were measured on."""
    machine = f"{platform.system()} {platform.machine()}, {platform.processor() or 'processor unknown'}"
    about = {"k3agent": __version__, "model": model, "machine": machine, "python": platform.python_version()}
    return json.dumps({**about, **more, "rows": [asdict(row) for row in rows]}, indent=2)


def plot(rows: Sequence[Row], model: str, path: Path) -> None:
    """Time to the first token and speed of decoding over the length, a line for each phase and number of
    users.
    """
    try:
        # lazy: 1 s, and only wanted for pictures
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchError("--png needs matplotlib: pip install 'k3agent[plots]'") from error
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    first, decode = figure.subplots(1, 2)
    colours = {"cold": "tab:blue", "hit": "tab:green", "restart": "tab:orange"}
    styles = ("-", "--", ":", "-.")
    counts = sorted({row.users for row in rows})
    for phase, colour in colours.items():
        for place, users in enumerate(counts):
            line = [row for row in rows if (row.phase, row.users) == (phase, users)]
            if not line:
                continue
            lengths = [row.context for row in line]
            look = {
                "color": colour,
                "linestyle": styles[place % len(styles)],
                "marker": "o",
                "label": f"{phase}, {users} user{'s' if users > 1 else ''}",
            }
            first.plot(lengths, [row.first_token_s for row in line], **look)
            decode.plot(lengths, [row.decode_tokens_per_s for row in line], **look)
    for axes, title in ((first, "seconds to the first token"), (decode, "tokens a second, each user")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens of prompt")
        axes.set_title(title)
        axes.grid(visible=True, alpha=0.3)
        axes.set_ylim(bottom=0)
    decode.legend(fontsize="small")
    figure.suptitle(f"{model}, k3agent {__version__}")
    figure.savefig(path, dpi=120)
