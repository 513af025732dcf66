"""What an image is, whatever it is called."""

from __future__ import annotations

import pytest

from k3agent.safety.images import image_type


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a..", "image/gif"),
        (b"GIF8", None),
        (b"RIFF....WEBPVP8 ", "image/webp"),
        # Sound has the same first bytes.
        (b"RIFF....WAVEfmt ", None),
        (b"", None),
        (b"<svg>", None),
    ],
)
def test_kinds(data: bytes, kind: str | None) -> None:
    assert image_type(data) == kind
