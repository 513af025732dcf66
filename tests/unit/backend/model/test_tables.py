"""A step as tensors says the same as the host's lists, padding included."""

import torch

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.model.inputs import ForwardBatch
from k3agent.backend.model.step import Step


def batch(lengths: list[int], contexts: list[int]) -> ForwardBatch:
    generator = torch.Generator().manual_seed(len(lengths))
    starts = [sum(lengths[:b]) for b in range(len(lengths) + 1)]
    table = torch.randperm(len(lengths) * 4, generator=generator).view(len(lengths), 4)
    return ForwardBatch(
        token_ids=torch.zeros(starts[-1], dtype=torch.long),
        cu_seqlens=starts,
        context_lens=contexts,
        page_table=table,
        state_slots=list(range(1, len(lengths) + 1)),
        has_state=[context > 0 for context in contexts],
    )


def test_tables_agree_with_the_lists() -> None:
    made = batch([1, 70, 1, 3], [0, 60, 200, 63])
    step = Step(made)
    tables = step.tables
    assert torch.equal(tables.latent_places(75), step.latent_places)
    assert torch.equal(tables.last_rows, step.last_rows)
    assert tables.has_state.tolist() == [0, 1, 1, 1]
    assert tables.slots.tolist() == made.state_slots
    assert tables.num_rows.tolist() == [75]
    assert tables.longest == 70 and not tables.is_decode
    assert Step(batch([1, 1], [5, 6])).tables.is_decode


def test_a_sequence_without_tokens_takes_no_row() -> None:
    tables = Step(batch([2, 1], [PAGE_SIZE - 1, 0])).tables
    tables.cu_seqlens = torch.tensor([0, 3, 3], dtype=torch.int32)
    pages = tables.page_table[0].tolist()
    expected = [pages[0] * PAGE_SIZE + PAGE_SIZE - 1, pages[1] * PAGE_SIZE, pages[1] * PAGE_SIZE + 1]
    assert tables.latent_places(3).tolist() == expected
