"""The image encoder (MoonViT-V2) and its projector: patches of images to embeddings of the text model.

Each item, a still image or a few frames, is encoded on its own, so packing several changes nothing. Modules
carry the names of the released weights. Source: the released code of Kimi K3; technical report, arXiv
2607.24653, section 2.4 (its text factorises attention over frames; the code, which is followed, does not).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3agent.backend.config import VisionConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.model.layers import Linear, parameter

NORM_EPS = 1.1920928955078125e-07
"""The tower's norms are built without an eps and so use that of fp32, on inputs of any dtype."""
ROTARY_BASE = 10000.0
MAX_SIDE = 512
"""Patches on one side of an item that the rotation was made for."""

Grid = tuple[int, int, int]
"""Frames, rows and columns of the patches of one item."""


class VisionNorm(nn.Module):
    """RMS norm that applies its weight before the cast back, unlike those of the text model."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(torch.empty(width, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(wide_dtype(x.dtype))
        inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * inverse_rms * self.weight).to(x.dtype)


class PatchProjection(nn.Module):
    """A convolution whose stride is its size: one product for each patch."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        shape = (config.vt_hidden_size, 3, config.patch_size, config.patch_size)
        self.weight = parameter(torch.empty(shape, dtype=dtype))

    def forward(self, pixels: Tensor) -> Tensor:
        return F.linear(pixels.flatten(1), self.weight.flatten(1))


class PositionTable(nn.Module):
    """Learned positions of a fixed grid, stretched to that of the item; frame numbers as sine waves."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._max_frames = config.init_pos_emb_time
        shape = (config.init_pos_emb_height, config.init_pos_emb_width, config.vt_hidden_size)
        self.weight = parameter(torch.empty(shape, dtype=dtype))

    def forward(self, grid: Grid) -> Tensor:
        """[t*h*w, D] in the order of the patches."""
        frames, rows, columns = grid
        table = self.weight
        if table.shape[:2] != (rows, columns):
            wide = table.to(wide_dtype(table.dtype)).permute(2, 0, 1).unsqueeze(0)
            stretched = F.interpolate(wide, (rows, columns), mode="bilinear", align_corners=False)
            table = stretched.squeeze(0).permute(1, 2, 0).to(table.dtype)
        flat = table.reshape(rows * columns, -1)
        if frames == 1:
            return flat
        if frames > self._max_frames:
            raise BackendError(f"an item has {frames} frames; the image encoder takes {self._max_frames}.")
        return (flat.unsqueeze(0) + self._frame_waves(frames).unsqueeze(1)).flatten(0, 1)

    def _frame_waves(self, frames: int) -> Tensor:
        """[t, D], sines in the first half of the channels."""
        half = self.weight.shape[-1] // 2
        steps = torch.arange(half, dtype=torch.float64, device=self.weight.device)
        number = torch.arange(frames, dtype=torch.float64, device=self.weight.device)
        angles = number.unsqueeze(1) * ROTARY_BASE ** (-steps / half)
        return torch.cat((angles.sin(), angles.cos()), dim=-1).to(self.weight.dtype)


class PatchEmbed(nn.Module):
    """Patches with their positions added."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.proj = PatchProjection(config, dtype)
        self.pos_emb = PositionTable(config, dtype)

    def forward(self, pixels: Tensor, grid: Grid) -> Tensor:
        return self.proj(pixels) + self.pos_emb(grid)


class VisionMLP(nn.Module):
    """fc1(gelu(fc0(x))), gelu in its tanh form."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc0 = Linear(config.vt_hidden_size, config.vt_intermediate_size, dtype)
        self.fc1 = Linear(config.vt_intermediate_size, config.vt_hidden_size, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(F.gelu(self.fc0(x), approximate="tanh"))


class Block(nn.Module):
    """One layer: full attention over all patches of the item, then the MLP."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.vt_hidden_size
        self._heads = config.vt_num_attention_heads
        self.norm0, self.norm1 = VisionNorm(width, NORM_EPS, dtype), VisionNorm(width, NORM_EPS, dtype)
        self.wqkv = Linear(width, 3 * config.qkv_hidden_size, dtype)
        self.wo = Linear(config.qkv_hidden_size, width, dtype)
        self.mlp = VisionMLP(config, dtype)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """x: [N, D]; turns: complex [N, head_dim/2]."""
        qkv = self.wqkv(self.norm0(x)).unflatten(-1, (3, self._heads, -1))
        q, k, v = qkv.permute(1, 2, 0, 3)
        o = F.scaled_dot_product_attention(rotate(q, turns), rotate(k, turns), v)
        x = x + self.wo(o.transpose(0, 1).flatten(1))
        return x + self.mlp(self.norm1(x))


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn pairs of adjacent channels, [H, N, K], by the unit complex numbers [N, K/2]."""
    pairs = torch.view_as_complex(x.to(wide_dtype(x.dtype)).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def rotary_turns(grid: Grid, head_dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Complex [t*h*w, head_dim/2]: even pairs turn with the column, odd ones with the row, all frames alike.

    `dtype` is that of the real parts.
    """
    frames, rows, columns = grid
    if max(rows, columns) > MAX_SIDE:
        raise BackendError(f"an image of {rows} x {columns} patches is over {MAX_SIDE} on a side; shrink it.")
    steps = torch.arange(head_dim // 4, dtype=torch.float64, device=device)
    speed = ROTARY_BASE ** (-4 * steps / head_dim)
    place = torch.arange(rows * columns, device=device)
    across, down = place % columns, place.div(columns, rounding_mode="floor")
    angles = torch.stack((across.unsqueeze(-1) * speed, down.unsqueeze(-1) * speed), dim=-1).flatten(-2)
    angles = angles.to(dtype)
    return torch.polar(torch.ones_like(angles), angles).repeat(frames, 1)


class Encoder(nn.Module):
    """The layers and the last norm."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        self.blocks = nn.ModuleList(Block(config, dtype) for _ in range(config.vt_num_hidden_layers))
        self.final_layernorm = VisionNorm(config.vt_hidden_size, NORM_EPS, dtype)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        turns = rotary_turns(grid, self._head_dim, wide_dtype(x.dtype), x.device)
        for block in self.blocks:
            x = block(x, turns)
        return self.final_layernorm(x)


class VisionTower(nn.Module):
    """Pixels of the patches of several items to merged features."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        self.patch_embed = PatchEmbed(config, dtype)
        self.encoder = Encoder(config, dtype)

    def forward(self, pixels: Tensor, grids: Sequence[Grid]) -> Tensor:
        """pixels: [N, 3, p, p], items one after another; grids: t, h, w of each. Returns [M, 4, D] with M the
        number of visual tokens: the four patches of a token row by row, averaged over the frames."""
        self._check(pixels, grids)
        counts = [t * h * w for t, h, w in grids]
        items = pixels.to(self.patch_embed.proj.weight.dtype).split(counts)
        return torch.cat([self._item(item, grid) for item, grid in zip(items, grids, strict=True)])

    def _item(self, pixels: Tensor, grid: Grid) -> Tensor:
        features = self.encoder(self.patch_embed(pixels, grid), grid)
        frames, rows, columns = grid
        high, wide = self._config.merge_kernel_size
        cells = features.view(frames, rows // high, high, columns // wide, wide, -1)
        return cells.permute(0, 1, 3, 2, 4, 5).mean(0).flatten(2, 3).flatten(0, 1)

    def _check(self, pixels: Tensor, grids: Sequence[Grid]) -> None:
        high, wide = self._config.merge_kernel_size
        for t, h, w in grids:
            if min(t, h, w) < 1 or h % high or w % wide:
                raise BackendError(f"grid {(t, h, w)} cannot be merged in cells of {high} x {wide} patches.")
        patch = (3, self._config.patch_size, self._config.patch_size)
        count = sum(t * h * w for t, h, w in grids)
        if pixels.shape != (count, *patch):
            raise BackendError(f"pixels have shape {list(pixels.shape)}; the grids need {[count, *patch]}.")


class Projector(nn.Module):
    """Merged features to embeddings of the text model."""

    def __init__(self, config: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.merged_width
        self.proj = nn.Sequential(
            Linear(width, width, dtype), nn.GELU(), Linear(width, config.text_hidden_size, dtype)
        )
        self.post_norm = VisionNorm(config.text_hidden_size, config.projector_ln_eps, dtype)

    def forward(self, features: Tensor) -> Tensor:
        """[M, 4, D] to [M, text_hidden_size]."""
        return self.post_norm(self.proj(features.flatten(1)))
