"""Passes padded to fixed shapes say the same as plain ones, and touch nothing that is not theirs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine import static_steps
from k3agent.backend.engine.client import EngineClient
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import (
    Add,
    EngineSettings,
    Finished,
    Generated,
    SamplingParams,
    WarmingUp,
)
from k3agent.backend.engine.process import load
from k3agent.backend.engine.runner import Runner, captures_graphs
from k3agent.backend.engine.static_steps import StaticStep
from k3agent.backend.engine.work import Work
from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.pinned import Tuned

NUM_PAGES, NUM_SLOTS = 12, 6


def settings_of(folder: Path, **more: Any) -> EngineSettings:
    values = {"dtype": "float64", "cache_bytes": 4 << 20, "max_model_len": 512, "exactness": "idle"}
    return EngineSettings(model_dir=str(folder), **{**values, **more})


@pytest.fixture(scope="module")
def runners(tiny_dir: Path) -> tuple[Runner, Runner]:
    """A plain one, and one that pads."""
    made = [Runner.load(settings_of(tiny_dir, graphs=graphs))[0] for graphs in ("off", "padded")]
    assert made[0]._static is None and made[1]._static is not None
    return made[0], made[1]


def tables(runner: Runner) -> list[torch.Tensor]:
    tensors = runner.storage.tensors
    return [*tensors.latents.values(), *tensors.kda_states.values(), *tensors.conv_tails.values()]


def fill(runner: Runner) -> None:
    """The same noise everywhere, so that reading what is not one's own shows."""
    generator = torch.Generator().manual_seed(0)
    for table in tables(runner):
        rows = NUM_PAGES if table.shape[1] == PAGE_SIZE else NUM_SLOTS
        table[:rows] = torch.randn(table[:rows].shape, generator=generator, dtype=torch.float64).to(
            table.dtype
        )


def check_equal(runners: tuple[Runner, Runner], works: list[Work]) -> None:
    for runner in runners:
        fill(runner)
    plain, padded = (runner.forward([replace(w) for w in works]) for runner in runners)
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-9)
    for one, other in zip(*(tables(runner) for runner in runners), strict=True):
        rows = NUM_PAGES if one.shape[1] == PAGE_SIZE else NUM_SLOTS
        torch.testing.assert_close(other[:rows], one[:rows], rtol=0, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_decodes_of_any_sequences(runners: tuple[Runner, Runner], data: st.DataObject) -> None:
    pages = data.draw(st.permutations(range(NUM_PAGES)))
    slots = data.draw(st.permutations(range(NUM_SLOTS)))
    works: list[Work] = []
    for slot in slots[: data.draw(st.integers(1, 5))]:
        context = data.draw(st.integers(0, 2 * PAGE_SIZE - 1))
        count = context // PAGE_SIZE + 1
        own, pages = pages[:count], pages[count:]
        works.append(
            Work(
                token_ids=[data.draw(st.integers(0, 255))],
                context_len=context,
                page_ids=list(own),
                state_slot=slot,
                num_logits=data.draw(st.integers(0, 1)),
            )
        )
    check_equal(runners, works)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 140), st.integers(0, 200), st.randoms(use_true_random=False))
def test_prefills_of_any_length(
    runners: tuple[Runner, Runner], length: int, context: int, random: Any
) -> None:
    count = -(-(length + context) // PAGE_SIZE)
    work = Work(
        token_ids=[random.randrange(256) for _ in range(length)],
        context_len=context,
        page_ids=random.sample(range(NUM_PAGES), count),
        state_slot=random.randrange(NUM_SLOTS),
    )
    check_equal(runners, [work])


def test_a_full_shape_has_no_padding(runners: tuple[Runner, Runner]) -> None:
    check_equal(runners, [Work(token_ids=[7] * 16, context_len=3, page_ids=[5], state_slot=2)])


def test_other_passes_run_as_they_are(runners: tuple[Runner, Runner]) -> None:
    one = Work(token_ids=[1, 2], context_len=0, page_ids=[0], state_slot=0)
    other = Work(token_ids=[3], context_len=70, page_ids=[1, 2], state_slot=1)
    static = runners[1]._static
    assert static is not None
    assert static.run([one, other]) is None
    assert static.run([replace(one, token_ids=[1] * 600)]) is None
    assert static.run([replace(other, token_ids=[1, 2], num_logits=2)]) is None
    check_equal(runners, [one, other])
    shape_of = static._shape_of
    assert shape_of([replace(one, token_ids=[1] * 159, context_len=10_000)]) is not None
    assert shape_of([replace(one, token_ids=[1] * 160, context_len=8192)]) is not None
    assert shape_of([replace(one, token_ids=[1] * 160, context_len=8193)]) is None


def test_an_engine_answers_the_same(tiny_dir: Path) -> None:
    answers = [answers_of(load(settings_of(tiny_dir, graphs=graphs))[0]) for graphs in ("off", "padded")]
    assert answers[0] == answers[1]
    assert all(answers[0].values())


def answers_of(engine: Engine) -> dict[str, list[int]]:
    """Several prompts side by side, one of them a continuation."""
    word = Tokenizer.from_dir(engine._settings.model_dir).encode("the cat sat on the mat ")
    found: dict[str, list[int]] = {}
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for turn, lengths in enumerate(((30, 3, 71), (90,))):
        for number, length in enumerate(lengths):
            ids = (word * 40)[number : number + length]
            engine.add(Add(request_id=f"{turn}-{number}", token_ids=ids, params=greedy))
        running = len(lengths)
        while running:
            for report in engine.step():
                if isinstance(report, Generated):
                    found.setdefault(report.request_id, []).extend(report.token_ids)
                running -= isinstance(report, Finished)
    engine.cache.check()
    return found


def test_preparation_tells_its_steps(runners: tuple[Runner, Runner]) -> None:
    told: list[tuple[int, int, str]] = []
    runners[1].prepare(lambda *step: told.append(step))
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert told[0][2] == "prefill of 512" and told[-2][2] == "decode of 1"
    assert told[-1] == (len(told) - 1, len(told) - 1, "")


def test_a_step_that_cannot_be_captured_runs_as_it_is(
    runners: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    static = runners[1]._static
    assert static is not None
    monkeypatch.setattr(static, "captures", True)
    monkeypatch.setattr(static, "_steps", {})
    # without a GPU every capture fails
    check_equal(runners, [Work(token_ids=[7] * 16, context_len=3, page_ids=[5], state_slot=2)])
    assert not static.captures and "no CUDA graphs from the prefill of 16 on" in caplog.text
    check_equal(runners, [Work(token_ids=[7], context_len=3, page_ids=[5], state_slot=2)])


def test_a_mistake_in_a_capture_is_not_taken_for_the_device_s(
    runners: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(*_: object) -> None:
        raise KeyError("a name of ours")

    static = runners[1]._static
    assert static is not None
    monkeypatch.setattr(static, "captures", True)
    monkeypatch.setattr(static, "_steps", {})
    monkeypatch.setattr(StaticStep, "warm_up", lambda _step: None)
    monkeypatch.setattr(StaticStep, "capture", capture)
    with pytest.raises(KeyError, match="a name of ours"):
        static.run([Work(token_ids=[7], context_len=3, page_ids=[5], state_slot=2)])


def test_no_step_is_longer_than_the_longest_sequence(tiny_dir: Path) -> None:
    runner, _ = Runner.load(settings_of(tiny_dir, graphs="padded", max_model_len=70))
    runner.prepare(lambda *step: None)
    work = Work(token_ids=[7] * 70, context_len=0, page_ids=[0, 1], state_slot=0)
    assert runner._static is not None and runner._static.fits([work])


def test_ranks_end_although_a_graph_cannot_be_given_up(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ranks:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    def release() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    runner, _ = Runner.load(settings_of(tiny_dir, graphs="padded"))
    ranks = Ranks()
    monkeypatch.setattr(runner, "_ranks", ranks)
    monkeypatch.setattr(runner._static, "release", release)
    with pytest.raises(RuntimeError, match="illegal memory"):
        runner.close()
    assert ranks.is_closed


def test_several_ranks_capture_like_one(runners: tuple[Runner, Runner], tiny_dir: Path) -> None:
    class OnGpu:
        device, is_capturable = torch.device("cuda"), True

    def captures(**more: Any) -> bool:
        return captures_graphs(settings_of(tiny_dir, **more), OnGpu())  # pyright: ignore[reportArgumentType]

    for ranks in (1, 2):
        assert captures(tensor_parallel=ranks) and captures(graphs="auto", tensor_parallel=ranks)
        assert not captures(graphs="padded", tensor_parallel=ranks)
        assert not captures(graphs="off", tensor_parallel=ranks)
    assert not captures_graphs(settings_of(tiny_dir), runners[0].model)
    OnGpu.is_capturable = False
    assert not captures(tensor_parallel=2)


def test_the_server_hears_how_far_a_start_is(tiny_dir: Path) -> None:
    told: list[WarmingUp] = []
    client = EngineClient(settings_of(tiny_dir))
    client.on_progress = told.append
    load(settings_of(tiny_dir, graphs="padded"), progress=lambda *step: client._dispatch(WarmingUp(*step)))
    assert told[0] == WarmingUp(0, told[0].num_steps, "prefill of 512")
    assert told[-1].num_done == told[-1].num_steps
    client.on_progress = None
    client._dispatch(told[0])


def test_measured_kernels_expand_where_steps_are_no_longer_static() -> None:
    rows = Tuned.read(Path(pinned.__file__).with_name("tuned.json")).rows["mla_prefill"]
    assert rows and {row.values["least_tokens"] for row in rows} == {static_steps.EXPANDING_TOKENS}
