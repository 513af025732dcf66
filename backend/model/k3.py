"""The decoder and causal LM of Kimi K3 and Kimi-Linear: the layer pattern, and the way through a step.

Modules carry the names of the released weights. Source: Kimi K3 technical report, arXiv 2607.24653.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import registry
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.kernels.matvec import has_int8_kernel
from k3agent.backend.model.attn_res import BlockStream, FusedStream, PlainStream, Site, Stream, attach_site
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch
from k3agent.backend.model.kda import KDA
from k3agent.backend.model.layers import Accelerated, GatedMLP, Linear, RMSNorm, parameter
from k3agent.backend.model.mla import MLA
from k3agent.backend.model.moe import Experts, MoE
from k3agent.backend.model.single import SinglePath, is_single, supports
from k3agent.backend.model.step import Step
from k3agent.backend.model.vision import Grid, Projector, VisionTower
from k3agent.backend.parallel.shard import Shard


class Embedding(nn.Module):
    """Rows of a table, unscaled. Of several ranks each has a run of rows and gives zeros for the others."""

    def __init__(self, count: int, width: int, dtype: torch.dtype, shard: Shard) -> None:
        super().__init__()
        self._shard = shard
        self._count = shard.share(count, "vocab_size")
        self.weight = parameter(torch.empty(self._count, width, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        if self._shard.world == 1:
            return F.embedding(ids, self.weight)
        local = ids - self._shard.rank * self._count
        is_here = (local >= 0) & (local < self._count)
        rows = F.embedding(local.clamp(0, self._count - 1), self.weight) * is_here.unsqueeze(-1)
        return self._shard.comm.all_reduce(rows)


class DecoderLayer(nn.Module):
    """Attention and MLP of one layer, both reading from and adding to the residual stream."""

    def __init__(
        self, config: ModelConfig, layer_index: int, dtype: torch.dtype, is_packed: bool, shard: Shard
    ) -> None:
        super().__init__()
        self._comm, self._index = shard.comm, layer_index
        width, eps, block = config.hidden_size, config.rms_norm_eps, config.attn_res_block_size
        attention = KDA if config.is_kda(layer_index) else MLA
        self.self_attn = attention(config, layer_index, dtype)
        self.input_layernorm = RMSNorm(width, eps, dtype)
        self.post_attention_layernorm = RMSNorm(width, eps, dtype)
        self.is_moe = config.is_moe(layer_index)
        if self.is_moe:
            self.block_sparse_moe = MoE(config, dtype, is_packed, shard)
        else:
            self.mlp = GatedMLP(config, config.intermediate_size, dtype)
        self.starts_block = block is not None and layer_index % block == 0
        self.attention_site: Site | None = None
        self.mlp_site: Site | None = None
        if block is not None:
            self.attention_site = attach_site(self, "self_attention_res", width, eps, dtype)
            self.mlp_site = attach_site(self, "mlp_res", width, eps, dtype)

    def forward(self, stream: Stream, step: Step, cache: CacheTensors) -> None:
        cache.await_layer(self._index)
        h = stream.read(self.attention_site, self.input_layernorm)
        # The boundary lies after the reading: the finished block was still the running sum for it.
        if self.starts_block:
            stream.start_block()
        # Ranks sum before the stream: what reads it is not linear.
        stream.add(self._comm.all_reduce(self.self_attn(h, step, cache)))
        h = stream.read(self.mlp_site, self.post_attention_layernorm)
        if self.is_moe:
            stream.add(self.block_sparse_moe(h, step.num_rows))
        else:
            stream.add(self._comm.all_reduce(self.mlp(h)))


class Decoder(Accelerated):
    """Embedding, layers, final norm."""

    is_capturable = True

    def __init__(self, config: ModelConfig, dtype: torch.dtype, is_packed: bool, shard: Shard) -> None:
        super().__init__()
        self._config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype, shard)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, dtype, is_packed, shard) for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.output_site: Site | None = None
        if config.attn_res_block_size is not None:
            width, eps = config.hidden_size, config.rms_norm_eps
            self.output_site = attach_site(self, "output_attn_res", width, eps, dtype)
        self._read: registry.Kernel | None = None
        """Adds, mixes and norms at once; None: one after the other."""

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        kernel = registry.choose("stream_read", kernels, device)
        self._read = None if kernel is registry.get("stream_read") else kernel

    def stream(self, embeddings: Tensor) -> Stream:
        """A residual stream that starts from the embeddings."""
        block = self._config.attn_res_block_size
        num_blocks = 0 if block is None else -(-self._config.num_hidden_layers // block)
        if self._read is not None:
            return FusedStream(embeddings, num_blocks, self._config.rms_norm_eps, self._read)
        if block is None:
            return PlainStream(embeddings)
        return BlockStream(embeddings, num_blocks, self._config.rms_norm_eps)

    def sites(self) -> Iterator[Site]:
        """Each place where attention residuals are read."""
        for layer in self.layers:
            yield from (s for s in (layer.attention_site, layer.mlp_site) if s is not None)  # pyright: ignore[reportReturnType]
        if self.output_site is not None:
            yield self.output_site


class K3ForCausalLM(nn.Module):
    """The language model. `dtype` is that of weights and activations; statistics, gates and states are wider.

    `packed_experts` keeps the routed experts in MXFP4 and unpacks the chosen ones in each step: slow, but a
    quarter of the memory. `int8_decode` (fp32 on the CPU) reads the weights of one-token steps as int8 where
    that is exact, with activations rounded to bf16 (see kernels.matvec): more than twice the speed. `shard`
    makes this one of several ranks; `config` is then that of its layers, `whole_config` that of the model.
    `kernels`, one of registry.CHOICES, says which implementations do the work.
    Weights come from `weights.load_model`; until then they hold nothing.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        *,
        packed_experts: bool = False,
        int8_decode: bool = False,
        shard: Shard | None = None,
        vision: bool = True,
        kernels: str = registry.AUTO,
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self.shard = shard or Shard()
        self.whole_config, self.config, self.dtype = config, self.shard.local(config), dtype
        self.model = Decoder(self.config, dtype, packed_experts, self.shard)
        self.lm_head = Linear(config.hidden_size, self.shard.share(config.vocab_size, "vocab_size"), dtype)
        self.vision_tower, self.mm_projector = None, None
        if vision and config.vision_config is not None:
            self.vision_tower = VisionTower(config.vision_config, dtype)
            self.mm_projector = Projector(config.vision_config, dtype)
        self._packed_experts = packed_experts
        self._int8_decode = int8_decode and dtype == torch.float32 and has_int8_kernel()
        self._single: SinglePath | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: CacheTensors, taps: list[Tensor] | None = None) -> Tensor:
        """Run one step: advances `cache`, returns logits [N, vocab] in fp32 (fp64 in a fp64 model).

        `taps`, if given, receives the running sum [T, D] of the residual stream after each layer.
        """
        rows = batch.logits_at
        if self._single is not None and batch.image_rows is None and is_single(batch):
            cache.await_all()
            hidden = self._single.run(batch, cache, taps)
            return self.lm_head(hidden if rows is None else hidden[rows])
        step = Step(batch)
        stream = self.model.stream(self._embed(batch))
        for layer in self.model.layers:
            layer(stream, step, cache)
            if taps is not None:
                taps.append(stream.total.clone())
        hidden = stream.read(self.model.output_site, self.model.norm)
        logits = self.lm_head(hidden[step.last_rows if rows is None else rows])
        return self.shard.comm.all_gather(logits).to(wide_dtype(self.dtype))

    @torch.inference_mode()
    def encode_images(self, pixels: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Features [M, D] of images for `ForwardBatch.image_features`, one a visual token, image after image.

        pixels: [N, 3, p, p], normalised patches, row by row; grids: frames, rows and columns of each image.
        """
        if self.vision_tower is None or self.mm_projector is None:
            raise BackendError("this model reads no images. Use one with a vision_config.")
        return self.mm_projector(self.vision_tower(pixels, grids))

    def _embed(self, batch: ForwardBatch) -> Tensor:
        """Embeddings of the tokens, [T, D], with image features in the place of their placeholders."""
        embeddings = self.model.embed_tokens(batch.token_ids)
        if batch.image_rows is None or batch.image_features is None:
            return embeddings
        return embeddings.index_copy(0, batch.image_rows, batch.image_features.to(embeddings.dtype))

    def destinations(self) -> dict[str, Tensor]:
        """Where each released name (without the prefix `language_model.`) goes; all must be filled.

        Names under `experts` stand for the whole stack, `...experts.w1.weight`, [E, out, in].
        """
        found: dict[str, Tensor] = dict(self.named_parameters())
        for prefix, module in self.named_modules():
            if isinstance(module, Experts):
                found |= {f"{prefix}.{name}": view for name, view in module.destinations()}
        return found

    def finish_loading(self) -> None:
        """Derive what is computed from weights once; call after filling the destinations."""
        for site in self.model.sites():
            site.fold()
        for module in self.modules():
            if isinstance(module, KDA):
                module.finish_loading()
        for module in self._accelerated():
            module.choose_kernels(self._kernels_used, self.device)
        if self.shard.world == 1 and supports(self.dtype, self.device, self._packed_experts):
            self._single = self._single_path()

    @property
    def kernels_identity(self) -> str:
        """Names the kernels that do the work: others round in other ways."""
        return registry.identity(self._kernels_used, self.device)

    @property
    def _kernels_used(self) -> str:
        # what is kept in fp64 is there to compare with
        return registry.REFERENCE if self.dtype == torch.float64 else self._kernels

    @property
    def is_capturable(self) -> bool:
        """Can a graph hold a step that comes with tables? Decided by the kernels of its layers."""
        modules = self._accelerated()
        return self.shard.comm.is_capturable and all(module.is_capturable for module in modules)

    def _accelerated(self) -> Iterator[Accelerated]:
        return (module for module in self.model.modules() if isinstance(module, Accelerated))

    def _single_path(self) -> SinglePath:
        decoder = self.model
        embeddings = decoder.embed_tokens.weight.detach()
        path = SinglePath(self.config, embeddings, decoder.norm, decoder.output_site, self._int8_decode)
        for layer in decoder.layers:
            path.append(layer.attention_site, layer.starts_block, layer.input_layernorm, layer.self_attn)  # pyright: ignore[reportArgumentType]
            mlp = layer.block_sparse_moe if layer.is_moe else layer.mlp
            path.append(layer.mlp_site, False, layer.post_attention_layernorm, mlp)  # pyright: ignore[reportArgumentType]
        return path

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "K3ForCausalLM":
        # Moving one parameter at a time would tear the shared storage of fused linears apart.
        raise BackendError("a loaded model cannot be moved or cast. Pass dtype and device to load_model.")
