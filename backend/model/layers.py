"""Building blocks with the released parameter names: linears over shared storage, RMS norm, the gated MLP.

Linears that read the same input lie in one matrix; the named parameters are views of its rows. So loading
stays a comparison of names, a layer does one product, and no weight is held twice. Sharding over ranks will
go here: each `fuse` is a set of row blocks that a rank may hold a part of, each `o_proj` or `down_proj` a
column block.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3agent.backend.config import ModelConfig
from k3agent.backend.kernels import registry


def parameter(tensor: Tensor) -> nn.Parameter:
    """A weight that is loaded and never trained here."""
    return nn.Parameter(tensor, requires_grad=False)


class Linear(nn.Module):
    """y = x W^T, no bias: no linear of the text model has one. `storage` makes the weight a view of other
    memory."""

    def __init__(
        self, in_features: int, out_features: int, dtype: torch.dtype, storage: Tensor | None = None
    ) -> None:
        super().__init__()
        if storage is None:
            storage = torch.empty(out_features, in_features, dtype=dtype)
        self.weight = parameter(storage)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def fuse(
    owner: nn.Module, in_features: int, outs: dict[str, int], dtype: torch.dtype, padding: int = 0
) -> Tensor:
    """Give `owner` a Linear under each name, stored one below the other; returns the whole matrix, with
    `padding` rows of zeros at its end."""
    count = sum(outs.values())
    storage = torch.empty(count + padding, in_features, dtype=dtype)
    storage[count:].zero_()
    for (name, width), rows in zip(outs.items(), storage[:count].split(list(outs.values())), strict=True):
        setattr(owner, name, Linear(in_features, width, dtype, storage=rows))
    return storage


class Accelerated(nn.Module):
    """A module some of whose operations have implementations for a GPU. It is made with those that come with
    PyTorch; `choose_kernels` is called once its weights are loaded, and may read them."""

    is_capturable: bool = False
    """Does it keep the host out of a step that came with tables, so that a graph can hold it?"""

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        """Take the implementations that `kernels`, one of registry.CHOICES, asks for on this device."""
        raise NotImplementedError


class RMSNorm(Accelerated):
    """y = w * cast(x * rsqrt(mean(x^2) + eps)): statistics wide, the weight applied after the cast."""

    is_capturable = True

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(torch.empty(width, dtype=dtype))
        self.eps = eps
        self._norm = registry.get("rms_norm")

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        self._norm = registry.choose("rms_norm", kernels, device)

    def forward(self, x: Tensor) -> Tensor:
        return self._norm(x, self.weight, self.eps)


def gated_act(
    config: ModelConfig, kernels: str = registry.REFERENCE, device: torch.device | str = "cpu"
) -> Callable[[Tensor], Tensor]:
    """The activation of all MLPs, from [..., 2*I] (gate, then up) to [..., I]."""
    if config.hidden_act == "situ":
        situ_glu = registry.choose("situ_glu", kernels, device)
        betas = config.activation_situ_beta, config.activation_situ_linear_beta
        return lambda gate_up: situ_glu(*gate_up.chunk(2, dim=-1), *betas)
    swiglu = registry.choose("swiglu", kernels, device)
    return lambda gate_up: swiglu(*gate_up.chunk(2, dim=-1))


class GatedMLP(Accelerated):
    """down_proj(f(gate_proj(x), up_proj(x)))."""

    is_capturable = True

    def __init__(self, config: ModelConfig, inner_width: int, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.hidden_size
        self._config = config
        self.gate_up = fuse(self, width, {"gate_proj": inner_width, "up_proj": inner_width}, dtype)
        self.down_proj = Linear(inner_width, width, dtype)
        self._act = gated_act(config)

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        self._act = gated_act(self._config, kernels, device)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self._act(F.linear(x, self.gate_up)))
