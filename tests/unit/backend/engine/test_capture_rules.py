"""What a graph holds must not ask the device for values or bring data from the host. No graph can be captured
without a GPU, but the steps run on the meta device, which takes the GPU's way through the model, with kernels
that are not launched; every operation that a capture would refuse is an error here."""

# pyright: reportMissingImports=none
# Triton is optional

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402  # after the skip
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from k3agent.backend.bench import standins  # noqa: E402
from k3agent.backend.config import PAGE_SIZE  # noqa: E402
from k3agent.backend.engine.static_steps import Scratch, Shape, StaticStep, StaticSteps  # noqa: E402
from k3agent.backend.engine.work import Work  # noqa: E402
from k3agent.backend.kernels import registry  # noqa: E402
from k3agent.backend.kernels.arguments import SHORT  # noqa: E402
from k3agent.backend.kernels.experts import ExpertStacks  # noqa: E402
from k3agent.backend.model.inputs import CacheTensors, allocate_cache  # noqa: E402
from k3agent.backend.model.k3 import K3ForCausalLM  # noqa: E402

META = torch.device("meta")
ASKS_THE_DEVICE = (
    "local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "is_nonzero",
    "equal",
    "argwhere",
)
BRINGS_DATA = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray)


class NoHostData(TorchFunctionMode):
    """Fails where a tensor is made of the host's numbers: the copy to the device is refused."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in BRINGS_DATA, f"{func} makes a tensor of the host's numbers"
        return func(*args, **(kwargs or {}))


class NoWaiting(TorchDispatchMode):
    """Fails where a value is asked of the device, or a tensor of the host is read."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(name == one or name.startswith(f"_{one}") for one in ASKS_THE_DEVICE), f"{name} waits"
        leaves = tree_leaves((args, kwargs))
        wide = {x.device.type for x in leaves if isinstance(x, torch.Tensor) and x.dim() > 0}
        assert "cpu" not in wide, f"{name} reads a tensor of the host"
        return func(*args, **(kwargs or {}))


@contextmanager
def as_captured() -> Iterator[None]:
    """Within it fails what a stream that is being captured refuses."""
    with NoHostData(), NoWaiting():
        yield


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kernels are chosen as on a GPU and not run; the list says which were called."""
    from triton.runtime.interpreter import InterpretedFunction

    called: list[str] = []
    monkeypatch.setattr(InterpretedFunction, "run", lambda self, *a, **k: called.append(self.__name__))
    monkeypatch.setattr(registry, "runs_triton", lambda device: True)
    monkeypatch.setattr(ExpertStacks, "suit_matrix_unit", lambda self: True)
    yield called


def make(name: str) -> tuple[K3ForCausalLM, CacheTensors, Scratch]:
    model = standins.build(standins.find(name), META, kernels="triton")
    assert model.is_capturable
    scratch = Scratch(page=16, slot=4)
    return model, allocate_cache(model.config, 17, 5, torch.bfloat16, META), scratch


SHAPES = [Shape(1, 1, 1), Shape(4, 4, 1), Shape(2, 16, 16), Shape(2, 512, 512)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["tiny-linear", "tiny-k3", "tiny-k3-rank"])
def test_a_step_asks_nothing_of_the_device(name: str, shape: Shape, unlaunched: list[str]) -> None:
    model, cache, scratch = make(name)
    step = StaticStep(shape, model, cache, scratch, num_pages=16)
    count = shape.num_sequences if shape.longest == 1 else 1
    works = [
        Work(
            token_ids=[1] * max(1, shape.longest - 3),
            context_len=70,
            page_ids=list(range(12)),
            state_slot=slot,
        )
        for slot in range(count)
    ]
    logits = {}
    for held in ([], works):
        batch = step._fill(held)
        with as_captured():
            logits[len(held)] = model(batch, cache)
    assert all(len(found) == shape.num_sequences for found in logits.values())
    expected = {"_recurrent_kernel", "_store_kernel", "_attend_kernel", "joined_kernel", "gate_up", "down"}
    assert expected <= set(unlaunched)
    assert ("scores_kernel" in unlaunched) == ("_walk_kernel" in unlaunched) == (shape.longest > SHORT)


def test_plain_passes_would_be_refused(unlaunched: list[str]) -> None:
    """The check sees what it is for: without tables the host makes them in the pass."""
    model, cache, scratch = make("tiny-linear")
    batch = StaticStep(SHAPES[0], model, cache, scratch, num_pages=16)._fill([])
    batch.tables = None
    with pytest.raises(AssertionError, match="host's numbers"), as_captured():
        model(batch, cache)
    with pytest.raises(AssertionError, match="waits"), as_captured():
        torch.ones(2, device=META).sum().item()
    with pytest.raises(AssertionError, match="reads a tensor of the host"):
        host = torch.ones(2)
        with as_captured():
            torch.empty(2, device=META).copy_(host)


def test_inputs_stay_where_a_graph_reads_them(unlaunched: list[str]) -> None:
    """Replays read buffers by address: filling them again must not move them."""
    model, cache, scratch = make("tiny-linear")
    step = StaticStep(SHAPES[1], model, cache, scratch, num_pages=16)
    first = step._fill([])
    work = Work(token_ids=[3], context_len=5 * PAGE_SIZE, page_ids=[1, 2, 3, 4, 5, 6], state_slot=2)
    second = step._fill([work, work])
    for one, other in ((first, second),):
        assert one.tables is not None and other.tables is not None
        names = ("cu_seqlens", "context_lens", "slots", "has_state", "num_rows")
        for found, again in [(one.token_ids, other.token_ids)] + [
            (getattr(one.tables, name), getattr(other.tables, name)) for name in names
        ]:
            assert found._base is again._base is step._numbers
            assert found.storage_offset() == again.storage_offset() and found.shape == again.shape
        assert one.tables.page_table is other.tables.page_table is step._pages
        assert (one.tables.longest, one.tables.shortest) == (other.tables.longest, other.tables.shortest)


def test_every_size_that_is_prepared_can_be_captured(unlaunched: list[str]) -> None:
    model, cache, scratch = make("tiny-k3")
    steps = StaticSteps(model, cache, scratch, max_model_len=1024, max_running=8)
    assert not steps.captures
    for shape in [*steps._decodes, *steps._prefills]:
        batch = StaticStep(shape, model, cache, scratch, num_pages=16)._fill([])
        with as_captured():
            model(batch, cache)
