"""Images to what the image encoder reads: resized, on a board where transparent, padded, cut in patches.

The numbers are those of the released `preprocessor_config.json`. Only pillow and numpy are used, and only
when an image comes. Source: the image processor that is published with Kimi K3.
"""

import base64
import binascii
import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3agent.backend.errors import BadRequestError, ModelFilesError

if TYPE_CHECKING:
    # the annotations alone: neither is loaded for a conversation without images
    import numpy as np
    from PIL import Image

MAX_IMAGE_BYTES = 100 << 20
MAX_IMAGE_PIXELS = 128_000_000
"""A decoded image of more pixels is refused: a small file can unpack to many gigabytes."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What shows through transparent parts: squares of two greys, the first of them top left."""

    square: int = 8
    white: int = 255
    gray: int = 180
    is_white_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How images become patches. The defaults are the released values."""

    patch_size: int = 14
    merge_size: int = 2
    max_patches: int = 65536
    max_patches_on_side: int = 512
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    board: Board | None = field(default_factory=Board)
    """None: the alpha channel is dropped."""

    @property
    def cell(self) -> int:
        """Pixels on the side of one visual token."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_dir(cls, folder: str | Path) -> "ImageSettings":
        """Read `preprocessor_config.json` where there is one; what it leaves out is as released."""
        file = Path(folder) / "preprocessor_config.json"
        if not file.is_file():
            return cls()
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            return cls.from_dict(raw.get("media_proc_cfg", raw))
        except (ValueError, TypeError, AttributeError) as error:
            raise ModelFilesError(f"{file} cannot be used ({error}). Fetch it again.") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "ImageSettings":
        """Build from the released names."""
        names = {
            "patch_size": "patch_size",
            "merge_kernel_size": "merge_size",
            "in_patch_limit": "max_patches",
            "patch_limit_on_one_side": "max_patches_on_side",
        }
        values: dict[str, Any] = {ours: int(raw[name]) for name, ours in names.items() if name in raw}
        values |= {
            ours: tuple(float(x) for x in raw[name])
            for name, ours in (("image_mean", "mean"), ("image_std", "std"))
            if name in raw
        }
        if "transparent_bg_config" in raw:
            values["board"] = _board(raw["transparent_bg_config"])
        stage = raw.get("transparent_bg_fill_stage", "after_resize")
        if stage != "after_resize":
            raise ValueError(f"transparent_bg_fill_stage {stage!r} is not supported: only after_resize is")
        return cls(**values)


def _board(raw: Mapping[str, Any] | None) -> Board | None:
    if raw is None:
        return None
    pattern = raw.get("pattern", "chessboard")
    if pattern != "chessboard":
        raise ValueError(f"transparent_bg_config.pattern {pattern!r} is not supported: only chessboard is")
    return Board(
        square=int(raw.get("chessboard_square_size", 8)),
        white=int(raw.get("chessboard_white_value", 255)),
        gray=int(raw.get("chessboard_gray_value", 180)),
        is_white_first=bool(raw.get("chessboard_square_on_top_left", True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes in pixels: the upload, what it is resized to, and that padded to whole visual tokens."""

    width: int
    height: int
    resized_width: int
    resized_height: int
    padded_width: int
    padded_height: int
    rows: int
    columns: int
    """Of patches."""
    num_tokens: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, rows, columns."""
        return (1, self.rows, self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedImage:
    """One image ready for the engine. `pixels` are its RGB bytes, padded, row by row: a quarter of the
    patches in fp32, so they are what goes through the pipe."""

    layout: Layout
    pixels: bytes = field(repr=False)

    @property
    def digest(self) -> bytes:
        """16 bytes that tell images apart: two with the same one give the same features."""
        layout = self.layout
        hasher = hashlib.blake2b(f"{layout.rows}x{layout.columns}:".encode(), digest_size=16)
        hasher.update(self.pixels)
        return hasher.digest()


def plan_layout(width: int, height: int, settings: ImageSettings) -> Layout:
    """Where an image of this size ends up. Never enlarges."""
    patch, cell = settings.patch_size, settings.cell
    longest = settings.max_patches_on_side * patch
    area = max(1, width // patch) * max(1, height // patch)
    scale = min(1.0, math.sqrt(settings.max_patches / area), longest / width, longest / height)
    new_width = min(max(1, int(width * scale)), longest)
    new_height = min(max(1, int(height * scale)), longest)
    padded_width, padded_height = (-(-side // cell) * cell for side in (new_width, new_height))
    return Layout(
        width=width,
        height=height,
        resized_width=new_width,
        resized_height=new_height,
        padded_width=padded_width,
        padded_height=padded_height,
        rows=padded_height // patch,
        columns=padded_width // patch,
        num_tokens=(padded_height // cell) * (padded_width // cell),
    )


def prepare_image(content: bytes, settings: ImageSettings) -> PreparedImage:
    """Decode, resize, fill, pad. Raises BadRequestError for what is no usable image."""
    import numpy as np  # lazy: 0.1 s, and a conversation without images needs neither
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                raise BadRequestError(
                    f"the image has {image.width} x {image.height} pixels, over {MAX_IMAGE_PIXELS}; send a"
                    " smaller one"
                )
            image.load()
            plain = _rgb_or_rgba(image)
    except UnidentifiedImageError:
        raise BadRequestError(f"the image is in no known format; send {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadRequestError(f"the image cannot be decoded: {error}") from error
    layout = plan_layout(plain.width, plain.height, settings)
    size = (layout.resized_width, layout.resized_height)
    if size != plain.size:
        # pillow weighs colours by alpha here, so what is hidden under alpha 0 does not bleed
        plain = plain.resize(size, Image.Resampling.BICUBIC)
    colours = _on_board(np.asarray(plain), settings.board)
    padded = np.zeros((layout.padded_height, layout.padded_width, 3), dtype=np.uint8)
    padded[: layout.resized_height, : layout.resized_width] = colours
    return PreparedImage(layout=layout, pixels=padded.tobytes())


def _rgb_or_rgba(image: "Image.Image") -> "Image.Image":
    """The pixels in 8 bits a channel, with alpha only where the image has it."""
    has_alpha = image.has_transparency_data
    if image.mode.startswith("I;16"):
        # pillow cuts 16-bit grey off at 255 instead of scaling it
        image = image.point(lambda value: value / 256).convert("L")
    wanted = "RGBA" if has_alpha else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def _on_board(pixels: "np.ndarray", board: Board | None) -> "np.ndarray":
    """uint8 [h, w, 3 or 4] to [h, w, 3]."""
    import numpy as np

    if pixels.shape[-1] == 3:
        return pixels
    if board is None:
        return pixels[..., :3]
    height, width = pixels.shape[:2]
    rows, columns = np.arange(height) // board.square, np.arange(width) // board.square
    is_first = (rows[:, None] + columns[None, :]) % 2 == 0
    first, second = (board.white, board.gray) if board.is_white_first else (board.gray, board.white)
    squares = np.where(is_first, np.float32(first), np.float32(second))[..., None]
    alpha = pixels[..., 3:].astype(np.float32) / np.float32(255)
    mixed = alpha * pixels[..., :3].astype(np.float32) + (np.float32(1) - alpha) * squares
    return mixed.astype(np.uint8)


def patches(image: PreparedImage, settings: ImageSettings) -> "np.ndarray":
    """fp32 [rows*columns, 3, p, p], normalised, row by row."""
    import numpy as np

    layout, size = image.layout, settings.patch_size
    pixels = np.frombuffer(image.pixels, dtype=np.uint8)
    pixels = pixels.reshape(layout.padded_height, layout.padded_width, 3)
    mean, std = (np.asarray(x, dtype=np.float32) for x in (settings.mean, settings.std))
    normal = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    cut = normal.reshape(layout.rows, size, layout.columns, size, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cut).reshape(-1, 3, size, size)


def read_data_url(url: str) -> bytes:
    """The bytes of a `data:` URL. No other URL is ever fetched."""
    head, comma, body = url.partition(",")
    if not head.startswith("data:") or not comma:
        raise BadRequestError(
            f"image url {url[:40]!r} is not supported; send the image as data:image/png;base64,..."
        )
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise BadRequestError(
            f"image url of type {head[5:60]!r} is not supported; send data:image/png;base64,..."
        )
    if len(body) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise BadRequestError(f"the image has more than {MAX_IMAGE_BYTES} bytes; send a smaller one")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise BadRequestError(f"the image url holds no valid base64: {error}") from error


class ImageReader:
    """Turns the URLs of a conversation into prepared images; remembers the last ones, since every request
    sends all images of the conversation again."""

    def __init__(self, settings: ImageSettings, max_kept_bytes: int = 128 << 20) -> None:
        self._settings = settings
        self._max_kept_bytes = max_kept_bytes
        self._kept: dict[bytes, PreparedImage] = {}

    def __call__(self, url: str) -> PreparedImage:
        """Raises BadRequestError for what is no usable image."""
        key = hashlib.blake2b(url.encode(errors="replace"), digest_size=16).digest()
        image = self._kept.pop(key, None)
        if image is None:
            image = prepare_image(read_data_url(url), self._settings)
        # the newest last; threads may race here, which costs at most a second preparation
        self._kept[key] = image
        while len(self._kept) > 1 and self._num_kept_bytes() > self._max_kept_bytes:
            self._kept.pop(next(iter(self._kept)), None)
        return image

    def _num_kept_bytes(self) -> int:
        return sum(len(image.pixels) for image in list(self._kept.values()))
