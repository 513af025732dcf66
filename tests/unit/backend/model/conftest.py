"""A harness on a tiny K3 of any configuration."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.model_harness import Harness
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.model.weights import load_model


@pytest.fixture
def make_harness(tmp_path: Path) -> Callable[..., Harness]:
    """Builds a harness on a tiny K3 in fp64 (or another dtype) with overridden config fields."""

    def make(
        dtype: torch.dtype = torch.float64, seed: int = 0, packed: bool | None = False, **overrides: object
    ) -> Harness:
        folder = tmp_path / f"tiny-{len(list(tmp_path.iterdir()))}"
        write_tiny_k3(folder, seed=seed, **overrides)
        return Harness(load_model(folder, dtype, packed_experts=packed))

    return make
