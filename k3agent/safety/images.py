"""What an image is, by its first bytes: names, and what servers and editors say of it, are not believed."""

from __future__ import annotations

# What every model that reads images takes.
COMMON = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MARKS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"BM": "image/bmp",
}


def image_type(data: bytes) -> str | None:
    """The MIME type; None for what is no image, or of no known kind."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _MARKS.items() if data.startswith(mark)), None)
