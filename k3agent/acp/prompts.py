"""An editor's prompt blocks as the user's words and images.

What the user has attached is named and put behind the words: text in a fence, files of the workspace as
`@path`, which the model opens itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from k3agent.acp.fields import invalid, optional_text, text_of
from k3agent.safety.fencing import fence
from k3agent.safety.images import COMMON, image_type
from k3agent.types import ImagePart, JsonObject

MAX_IMAGE_BYTES = 20 * 1024 * 1024
MAX_ATTACHED_CHARS = 200_000


def read_blocks(blocks: Sequence[Any], cwd: Path) -> tuple[str, list[ImagePart]]:
    """The words and the images. Raises RpcError for blocks that are none, or that hold nothing."""
    words: list[str] = []
    attached: list[str] = []
    images: list[ImagePart] = []
    for block in blocks:
        if not isinstance(block, dict):
            raise invalid(f"a prompt block must be an object, not {block!r:.80}")
        kind = block.get("type")
        if kind == "text":
            words.append(text_of(block, "text"))
        elif kind == "image":
            images.append(_image(text_of(block, "mimeType"), text_of(block, "data")))
        elif kind == "resource_link":
            words.append(_link(block, cwd))
        elif kind == "resource":
            found = _resource(block, cwd)
            words.append(found[0])
            attached.append(found[1])
        else:
            raise invalid(f"prompt blocks of type {kind!r} are not taken; send text, images or resources")
    text = "\n\n".join(part for part in ("".join(words).strip(), *attached) if part)
    if not text and images:
        text = "See the image." if len(images) == 1 else "See the images."
    if not text:
        raise invalid("the prompt is empty")
    return text, images


def _image(mime: str, data: str) -> ImagePart:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"the data of an image is no base64: {error}") from error
    if len(content) > MAX_IMAGE_BYTES:
        raise invalid(f"an image of {len(content):,} bytes is too large; at most {MAX_IMAGE_BYTES:,}")
    if mime not in COMMON:
        raise invalid(f"images of type {mime!r} are not taken; send one of {', '.join(COMMON)}")
    if image_type(content) != mime:
        raise invalid(f"an image that is said to be {mime} is none")
    return ImagePart(mime=mime, data=content)


def _link(block: JsonObject, cwd: Path) -> str:
    place = place_of(text_of(block, "uri"), cwd)
    name = optional_text(block, "name")
    return place if name is None or place.startswith("@") else f"{name} ({place})"


def _resource(block: JsonObject, cwd: Path) -> tuple[str, str]:
    """How it is named within the words, and what is put behind them."""
    resource = block.get("resource")
    if not isinstance(resource, dict):
        raise invalid(f"resource must be an object, not {resource!r:.80}")
    place = place_of(text_of(resource, "uri"), cwd)
    text = resource.get("text")
    if not isinstance(text, str):
        # Bytes that are no text: the model can look at the file itself, if it is one.
        return place, ""
    note = ""
    if len(text) > MAX_ATTACHED_CHARS:
        note = f"\n[... {len(text) - MAX_ATTACHED_CHARS} more characters]"
    return place, "Attached by the user's editor:\n" + fence(text[:MAX_ATTACHED_CHARS] + note, place)


def place_of(uri: str, cwd: Path) -> str:
    """`@path` for a file, relative inside the workspace; another address as it is, on one line."""
    parts = urlsplit(uri)
    if parts.scheme == "file" or uri.startswith("/"):
        path = Path(unquote(parts.path))
        lines = f":{parts.fragment.removeprefix('L')}" if parts.fragment.startswith("L") else ""
        inside = path.is_relative_to(cwd)
        return f"@{path.relative_to(cwd) if inside else path}{lines}"
    return " ".join(uri.split())
