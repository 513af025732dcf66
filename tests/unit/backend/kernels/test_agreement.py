"""Every implementation in the registry agrees with the reference of its operation."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import registry

ATOL = 1e-11


def mla_arguments(seed: int) -> tuple[object, ...]:
    generator = torch.Generator().manual_seed(seed)
    num_queries, num_before, heads, nope, shared, rank = 70, (0, 90)[seed % 2], 3, 8, 4, 10
    v_dim = (6, 12, 16)[seed % 3]

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rows = noise(num_before + num_queries, rank + shared)
    up = noise(heads, nope + v_dim, rank)
    return noise(num_queries, heads, nope + shared), rows, up[:, :nope], up[:, nope:], 0.3, num_before


# One maker of arguments for each operation that has more than its reference.
ARGUMENTS: dict[str, Callable[[int], tuple[object, ...]]] = {
    "mla_expanded": mla_arguments,
    "mla_absorbed": mla_arguments,
}
ENTRIES = [
    (op, name) for op in registry.ops() for name in registry.implementations(op) if name != registry.REFERENCE
]


@pytest.mark.parametrize(("op", "name"), ENTRIES)
@pytest.mark.parametrize("seed", range(6))
def test_implementation_agrees_with_the_reference(op: str, name: str, seed: int) -> None:
    arguments = ARGUMENTS[op](seed)
    expected, found = registry.get(op)(*arguments), registry.get(op, name)(*arguments)
    torch.testing.assert_close(found, expected, rtol=0, atol=ATOL)


def test_every_operation_has_a_reference() -> None:
    assert all(registry.REFERENCE in registry.implementations(op) for op in registry.ops())
    assert registry.get("route", "fused") is registry.get("route")


def test_unknown_operation_is_named() -> None:
    with pytest.raises(BackendError, match="no operation 'attend'"):
        registry.get("attend")


def test_registered_implementation_is_found() -> None:
    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    registry.register("swiglu", "test", doubled)
    try:
        assert registry.get("swiglu", "test") is doubled
    finally:
        del registry.implementations("swiglu")["test"]
