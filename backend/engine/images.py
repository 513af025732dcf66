"""Images of a sequence: ids that tell them apart in the prefix tree, and their features when they are wanted.

All placeholders have one id in the vocabulary, so two prompts with different images of one size would look
equal to the cache. Inside the engine a placeholder therefore has an id past the vocabulary, made from the
pixels; it is replaced just before the model sees it.
"""

from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import LongTensor, Tensor

from k3agent.backend.chat.images import ImageSettings, PreparedImage, patches
from k3agent.backend.chat.template import PlacedImage
from k3agent.backend.errors import BackendError
from k3agent.backend.model.k3 import K3ForCausalLM

_DIGEST_BYTES = 7
"""Of the content, so that an id stays below 2^63."""


@dataclass(slots=True)
class ImageSpan:
    """One image of a sequence: its placeholders are the tokens from `start` to before `stop`."""

    start: int
    stop: int
    image: PreparedImage
    features: Tensor | None = field(default=None, repr=False)
    """[stop - start, D]; kept only while a prefill is inside the image."""


class HasImages(Protocol):
    """What is needed of a sequence."""

    token_ids: list[int]
    images: list[ImageSpan]


def place_images(
    token_ids: Several[int], images: Several[PlacedImage], vocab_size: int
) -> tuple[list[int], list[ImageSpan]]:
    """The ids with each image's placeholders replaced by an id of its own, and where the images are."""
    ids, spans = list(token_ids), []
    for placed in images:
        count = placed.image.layout.num_tokens
        stop = placed.position + count
        if stop > len(ids):
            raise BackendError(f"an image ends at token {stop} of {len(ids)}: its placeholders are missing.")
        content_id = vocab_size + int.from_bytes(placed.image.digest[:_DIGEST_BYTES], "big")
        ids[placed.position : stop] = [content_id] * count
        spans.append(ImageSpan(placed.position, stop, placed.image))
    return ids, spans


class ImageFeatures:
    """Runs the image encoder for the images that a step touches; those that the cache holds are never run."""

    def __init__(self, model: K3ForCausalLM, settings: ImageSettings) -> None:
        self._model, self._settings = model, settings

    def of_step(
        self, sequence: HasImages, begin: int, end: int
    ) -> tuple[list[int], LongTensor | None, Tensor | None]:
        """Ids of the tokens from `begin` to before `end` as the model knows them, the rows that are visual
        tokens, and their features; both None when there are none."""
        ids = sequence.token_ids[begin:end]
        rows: list[int] = []
        features: list[Tensor] = []
        for span in sequence.images:
            first, last = max(begin, span.start), min(end, span.stop)
            if first >= last:
                continue
            if span.features is None:
                span.features = self._encode(span.image)
            features.append(span.features[first - span.start : last - span.start])
            rows += range(first - begin, last - begin)
            if end >= span.stop:
                span.features = None
        if not rows:
            return ids, None, None
        placeholder = self._model.config.media_placeholder_token_id or 0
        for row in rows:
            ids[row] = placeholder
        places = torch.tensor(rows, device=self._model.device)
        return ids, places, torch.cat(features)  # pyright: ignore[reportReturnType]

    def _encode(self, image: PreparedImage) -> Tensor:
        pixels = torch.from_numpy(patches(image, self._settings)).to(self._model.device)
        return self._model.encode_images(pixels, [image.layout.grid])
