"""`python -m k3agent.backend.training.ablation`: the small table of what each of K3's choices is worth.

Every row trains a fresh model on the same batches in the same order from the same seed, with one switch of
`variants.py` turned. Rows are written as they end and kept by the next command, so the table can be made in
pieces.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3agent.backend.errors import BackendError
from k3agent.backend.training import run
from k3agent.backend.training.data import Feed, HostBatch
from k3agent.backend.training.variants import ABLATIONS, K3, UNROUNDED, Variant

if TYPE_CHECKING:  # the workers import this module and are to stay small
    from k3agent.backend.training.network import Batch
    from k3agent.backend.training.trainer import Trainer

TABLE = "ablation"
EVERY = 10
"""Steps between two points of a curve."""


@dataclass
class Row:
    """What one variant came to. Losses are those of assistant tokens."""

    name: str
    variant: dict[str, Any]
    steps: int
    tokens: int
    seed: int
    loss: float
    """On unseen episodes, unrounded."""
    loss_rounded: float
    """The same with weights rounded as the file has them."""
    error_rounded: float
    imbalance_max: float
    """The busiest expert over the mean in the worst layer, median over the last fifth of the steps."""
    imbalance_mean: float
    tokens_per_s: float
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(tokens, assistant loss, imbalance_max)"""


class Recorded:
    """Batches of a feed, kept: the first reader waits for the workers, all later ones read the same again."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._kept = feed, list[HostBatch]()

    def __call__(self, count: int) -> Iterator[HostBatch]:
        for number in range(count):
            if number == len(self._kept):
                self._kept.append(self._feed.next())
            yield self._kept[number]


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, argparse.Namespace]:
    """Options of this command, and of `training.run` for what both have."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.training.ablation", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help=f"folder for {TABLE}.json, .md and .png")
    add("--steps", type=int, default=250, help="of each row")
    add("--only", action="append", choices=list(ABLATIONS), metavar="ROW", help="a row, by name; repeatable")
    add("--again", action="store_true", help="also rows that are there already")
    add("--until-s", type=float, default=float("inf"), help="begin no row after so many seconds")
    add("--print-rows", action="store_true", help="print the names of all rows and end")
    mine, rest = parser.parse_known_args(arguments)
    options = run.parse(["--out", str(mine.out), "--max-uses", "1", *rest])
    if options.ranks > 1:
        parser.error(f"--ranks {options.ranks}: rows are trained on one rank")
    return mine, options


def prepared(row: Variant, options: argparse.Namespace) -> argparse.Namespace:
    """The options of one row."""
    return argparse.Namespace(**(vars(options) | asdict(row)))


def train_row(
    name: str, steps: int, options: argparse.Namespace, batches: Recorded, judged: "list[Batch]"
) -> Row:
    """Train one row to its end."""
    from k3agent.backend.training import loop, trainer  # lazy: 3 s, and workers start first
    from k3agent.backend.training.balancing import imbalance  # lazy: as above
    from k3agent.backend.training.optimizer import rate_factor  # lazy: as above

    made, _ = loop.make_trainer(prepared(ABLATIONS[name], options))
    made.refresh(rounded=False)
    curve: list[tuple[int, float, float]] = []
    means: list[float] = []
    timed_from, timed_tokens = time.monotonic(), 0
    for number, host in enumerate(batches(steps)):
        progress = number / steps
        factor = rate_factor(progress, options.warmup, options.fall_from)
        is_rounded = made.variant.round_weights and progress >= options.quantize_from
        made.step(trainer.to_device(host, made.device), factor, rounded=is_rounded)
        if number % EVERY == EVERY - 1 or number == steps - 1:
            measures = made.read_measures()
            uneven = imbalance(measures.loads)
            curve.append((made.num_tokens, measures.assistant_loss, float(uneven.max())))
            means.append(float(uneven.mean()))
        if number == EVERY - 1:
            # Compiling is over by then.
            timed_from, timed_tokens = time.monotonic(), made.num_tokens
    took_s = max(time.monotonic() - timed_from, 1e-6)
    last = max(len(curve) // 5, 1)
    loss, rounded, error = losses(made, judged)
    return Row(
        name=name,
        variant=asdict(ABLATIONS[name]),
        steps=steps,
        tokens=made.num_tokens,
        seed=options.seed,
        loss=loss,
        loss_rounded=rounded,
        error_rounded=error,
        imbalance_max=statistics.median(point[2] for point in curve[-last:]),
        imbalance_mean=statistics.median(means[-last:]),
        tokens_per_s=round((made.num_tokens - timed_tokens) / took_s),
        curve=curve,
    )


def losses(made: "Trainer", judged: "list[Batch]") -> tuple[float, float, float]:
    """Loss with the masters as they are; loss and share of wrong tokens with weights rounded to MXFP4."""
    made.network.is_rounding = False
    made.refresh(rounded=False)
    plain, _ = made.evaluate(judged)
    made.network.is_rounding = made.variant.round_inputs
    made.refresh(rounded=True)
    rounded, accuracy = made.evaluate(judged)
    return plain, rounded, 1 - accuracy


def table(rows: Mapping[str, Row]) -> str:
    """The rows as Markdown, each against K3's where that is there."""
    lines = [
        "| | loss | rounded to MXFP4 | against K3's | wrong tokens | busiest expert / mean, worst layer |"
        " all layers | tokens/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    base = rows.get(K3)
    for row in rows.values():
        against = f"{row.loss_rounded / base.loss_rounded - 1:+.1%}" if base else ""
        lines.append(
            f"| {row.name} | {row.loss:.4f} | {row.loss_rounded:.4f} | {against} |"
            f" {row.error_rounded:.2%} | {row.imbalance_max:.2f} | {row.imbalance_mean:.2f} |"
            f" {row.tokens_per_s:,.0f} |"
        )
    return "\n".join((*lines, *rounding(rows))) + "\n"


def rounding(rows: Mapping[str, Row]) -> Iterator[str]:
    """What rounding to MXFP4 costs when it is trained, and when it is done afterwards."""
    plain = rows.get(UNROUNDED)
    if plain is None:
        return
    yield ""
    yield f"Rounding costs, against the unrounded loss of {UNROUNDED!r} ({plain.loss:.4f}):"
    for name in (K3, "inputs never rounded"):
        if (row := rows.get(name)) is not None:
            yield f"* {row.name}, rounding in the loop: {row.loss_rounded / plain.loss - 1:+.2%}"
    yield f"* {plain.name}, rounded afterwards: {plain.loss_rounded / plain.loss - 1:+.2%}"


def read(folder: Path) -> dict[str, Row]:
    """Rows of an earlier command. Raises BackendError if the file is not one of them."""
    file = folder / f"{TABLE}.json"
    if not file.exists():
        return {}
    try:
        return {row["name"]: Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}
    except (ValueError, TypeError, KeyError) as error:
        raise BackendError(f"{file} holds no rows of this command ({error}). Move it away.") from error


def write(folder: Path, found: Mapping[str, Row], about: Mapping[str, Any]) -> dict[str, Row]:
    """All rows so far, in the table's order, as JSON, Markdown and a picture."""
    from k3agent.backend.training import plots  # lazy: not for workers

    rows = {name: found[name] for name in ABLATIONS if name in found}
    content = {**about, "rows": [asdict(row) for row in rows.values()]}
    partial = folder / f"{TABLE}.json.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / f"{TABLE}.json")
    (folder / f"{TABLE}.md").write_text(table(rows), encoding="utf-8")
    plots.draw_ablation({name: row.curve for name, row in rows.items()}, folder / f"{TABLE}.png")
    return rows


def wanted(mine: argparse.Namespace, found: Mapping[str, Row]) -> list[str]:
    """Rows to train, in order. Raises BackendError when rows that are there were trained for another time."""
    names = [name for name in ABLATIONS if not mine.only or name in mine.only]
    if mine.again:
        return names
    for row in found.values():
        if row.steps != mine.steps:
            raise BackendError(
                f"{mine.out}/{TABLE}.json has rows of {row.steps} steps, not {mine.steps}: rows of different"
                " length cannot be compared. Give --steps as there, --again, or another --out."
            )
    return [name for name in names if name not in found]


def main(arguments: list[str] | None = None, started: float | None = None) -> int:
    mine, options = parse(arguments)
    if mine.print_rows:
        print("\n".join(ABLATIONS))
        return 0
    started = time.monotonic() if started is None else started
    mine.out.mkdir(parents=True, exist_ok=True)
    found = read(mine.out)
    names = wanted(mine, found)
    run.set_environment(options)
    if options.cache_from:
        from k3agent.backend.training.compiled import unpack_cache  # lazy: not for workers

        unpack_cache(options.cache_from, options.cache)
    feeds = run.start_feeds(options)
    try:
        train_rows(names, mine, options, feeds, found, lambda: time.monotonic() - started)
    finally:
        for feed in feeds.values():
            feed.close()
    return 0


def train_rows(
    names: list[str],
    mine: argparse.Namespace,
    options: argparse.Namespace,
    feeds: Mapping[str, Feed],
    found: dict[str, Row],
    seconds: Callable[[], float],
) -> None:
    """Train the rows that are wanted, one after the other, and write the table after each."""
    import torch  # lazy: workers start first

    from k3agent.backend.training import trainer  # lazy: as above

    batches = Recorded(feeds["train"])
    device = torch.device(options.device)
    judged = [trainer.to_device(feeds["eval"].next(), device) for _ in range(options.eval_batches)]
    about = {"torch": torch.__version__, "device": options.device, "options": " ".join(sys.argv[1:])}
    for name in names:
        if seconds() > mine.until_s:
            print(f"no time for {name!r} and what follows", flush=True)
            return
        found[name] = train_row(name, mine.steps, options, batches, judged)
        write(mine.out, found, about)
        row = replace(found[name], curve=[])
        print(json.dumps({"seconds": round(seconds(), 1), **asdict(row)}), flush=True)
    if found:
        print(table(write(mine.out, found, about)), end="")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BackendError as error:
        sys.exit(str(error))
