"""Token errors of given weights on fixed episodes, by family, on a CPU: is each next token told when all
before it are right?

`python -m k3agent.backend.training.teacher_forced --episodes 20 --out report.json` needs no GPU; the same
seed and the same generator give the same episodes, so that two sets of weights can be compared.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.model.inputs import PAGE_SIZE, CacheTensors, ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.weights import load_model
from k3agent.backend.training.encode import MAX_TOKENS, NANO, EncodedEpisode, Encoder
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import LONG, Episode, Player, draw_plan
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.session import Session, TooLong
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.task import FAMILIES

PARTS = {
    "new": (False, "train"),
    "wordings": (False, "held_out"),
    "held_out": (True, "held_out"),
    "hard": (True, "hard"),
}
"""Column name to (held-out words, part of the wordings): `grammar.PARTS` says what the parts are."""


@dataclass(slots=True)
class Count:
    """Tokens and turns of the assistant, and how many of them went wrong."""

    tokens: int = 0
    wrong_tokens: int = 0
    turns: int = 0
    wrong_turns: int = 0

    def add(self, other: "Count") -> None:
        """Sum up."""
        self.tokens += other.tokens
        self.wrong_tokens += other.wrong_tokens
        self.turns += other.turns
        self.wrong_turns += other.wrong_turns

    @property
    def shares(self) -> tuple[float, float]:
        """Percent of wrong tokens, percent of turns with a wrong token."""
        return (
            100 * self.wrong_tokens / max(self.tokens, 1),
            100 * self.wrong_turns / max(self.turns, 1),
        )


def family_episodes(family: str, count: int, seed: int, column: str) -> Iterator[Episode]:
    """Episodes of one task each."""
    held_out, part = PARTS[column]
    player = Player(seed, FAMILIES.index(family), held_out=held_out, part=part)
    player.box.start()
    made = 0
    try:
        while made < count:
            words = Words(player.rng, held_out, part)
            project = draw_project(player.rng, words)
            player.box.workspace.reset(project.files)
            player.box.new_session(player.machine(2))
            plan = draw_plan(Setting(Facts(dict(project.files)), player.rng, words, project), LONG, family)
            session = Session(player.box, player.rng, max_chars=7000, slips=False)
            try:
                if plan is None or not player.play(session, plan):
                    continue
            except TooLong:
                continue
            made += 1
            yield Episode(session.messages, session.unlearned, [plan.goal])
    finally:
        player.close()


class Reader:
    """Runs encoded episodes through a model; the constant beginning is computed once."""

    def __init__(self, model: K3ForCausalLM, prefix: Sequence[int]) -> None:
        self.model = model
        self.num_prefix = len(prefix)
        pages = MAX_TOKENS // PAGE_SIZE
        self.cache: CacheTensors = allocate_cache(model.config, pages, 1, torch.float32, torch.device("cpu"))
        self.pages = torch.arange(pages)[None]
        self._run(list(prefix), 0, None)
        self.states = {index: tensor.clone() for index, tensor in self.cache.kda_states.items()}
        self.tails = {index: tensor.clone() for index, tensor in self.cache.conv_tails.items()}

    def _run(self, ids: list[int], start: int, rows: torch.Tensor | None) -> torch.Tensor:
        batch = ForwardBatch(
            torch.tensor(ids), [0, len(ids)], [start], self.pages, [0], [start > 0], logits_at=rows
        )
        with torch.inference_mode():
            return self.model(batch, self.cache)

    def count(self, episode: EncodedEpisode) -> Count:
        """The wrong tokens and turns of an episode."""
        with torch.inference_mode():
            for index, tensor in self.states.items():
                self.cache.kda_states[index].copy_(tensor)
            for index, tensor in self.tails.items():
                self.cache.conv_tails[index].copy_(tensor)
        ids = episode.token_ids.astype(int).tolist()[self.num_prefix :]
        learned = torch.tensor(episode.loss_weight[self.num_prefix :]) >= 1.0
        targets = torch.nonzero(learned).flatten()
        logits = self._run(ids, self.num_prefix, targets - 1)
        wrong = logits.argmax(-1) != torch.tensor(ids)[targets]
        turn = torch.cumsum((targets[1:] != targets[:-1] + 1).long(), 0)
        turns = torch.cat((torch.zeros(1, dtype=torch.long), turn))
        return Count(len(targets), int(wrong.sum()), int(turns[-1]) + 1, len(set(turns[wrong].tolist())))


def measure(folder: Path, columns: Sequence[str], count: int, seed: int) -> dict[str, dict[str, Count]]:
    """Counts by column, and in it by family and by `family/goal`."""
    encoder, model = Encoder(Tokenizer.from_dir(folder)), load_model(folder)
    reader = Reader(model, encoder.prefix)
    found: dict[str, dict[str, Count]] = {}
    for column in columns:
        table = found.setdefault(column, defaultdict(Count))
        for family in FAMILIES:
            for episode in family_episodes(family, count, seed, column):
                encoded = encoder.encode(episode)
                if len(encoded.token_ids) <= MAX_TOKENS:
                    one = reader.count(encoded)
                    for name in (family, f"{family}/{episode.goals[0]}", "all"):
                        table[name].add(one)
            print(
                f"{column} {family} {table[family].shares[0]:.2f} % {table[family].shares[1]:.1f} %",
                flush=True,
            )
    return found


def as_table(found: dict[str, dict[str, Count]]) -> str:
    """Families by columns: percent of wrong tokens, percent of turns that have one."""
    lines = [f"{'family':10}" + "".join(f"{column:>18}" for column in found)]
    for family in (*FAMILIES, "all"):
        cells = "".join(
            "{:>11.2f} {:>6.1f}".format(*table[family].shares) for table in found.values() if family in table
        )
        lines.append(f"{family:10}{cells}")
    worst = sorted(
        (
            (*count.shares, column, name)
            for column, table in found.items()
            for name, count in table.items()
            if "/" in name
        ),
        key=lambda row: -row[1],
    )
    lines += ["", "worst goals"]
    lines += [f"{tokens:7.2f} {turns:6.1f} {column} {name}" for tokens, turns, column, name in worst[:25]]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=NANO)
    parser.add_argument("--episodes", type=int, default=20, help="a family and column")
    parser.add_argument("--columns", default="new,wordings,held_out,hard", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file with all counts")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    columns = options.columns.split(",")
    found = measure(options.weights, columns, options.episodes, options.seed)
    print(as_table(found))
    if options.out:
        plain = {
            column: {
                name: [count.tokens, count.wrong_tokens, count.turns, count.wrong_turns]
                for name, count in table.items()
            }
            for column, table in found.items()
        }
        options.out.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
