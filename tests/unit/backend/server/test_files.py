"""Uploads: forms as clients write them, bounds, and references from a chat."""

import base64

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.errors import HttpError
from k3agent.backend.server.files import Upload, Uploads, parse_form


@given(
    data=st.binary(max_size=200) | st.just(b"\r\n--x\r\n\r\n--"),
    name=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20),
)
def test_what_a_client_sends_arrives(data: bytes, name: str) -> None:
    request = httpx.Request(
        "POST", "http://x/", files={"file": (f"{name}.txt", data)}, data={"purpose": "file-extract"}
    )
    found = parse_form(request.headers["content-type"], request.read())
    assert (found.data, found.purpose) == (data, "file-extract")
    assert found.body()["bytes"] == len(data)


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("application/json", b"{}", "multipart"),
        ("multipart/form-data", b"", "multipart"),
        ("multipart/form-data; boundary=x", b"", "no field file"),
        ("multipart/form-data; boundary=x", b"--x\r\nno head\r\n--x--", "no field file"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhi\r\n--x--\r\n',
            "no field purpose",
        ),
    ],
)
def test_forms_that_are_none(kind: str, body: bytes, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        parse_form(kind, body)


@given(body=st.binary(max_size=300))
def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    try:
        parse_form("multipart/form-data; boundary=x", b"--x\r\n" + body)
    except BadRequestError as error:
        assert "form" in str(error)


def test_bounds_and_deleting() -> None:
    uploads = Uploads(max_bytes=10)
    first = Upload("a", "file-extract", b"12345678")
    uploads.add(first)
    with pytest.raises(HttpError, match="delete some") as caught:
        uploads.add(Upload("b", "file-extract", b"123"))
    assert caught.value.status == 413
    uploads.delete(first.id)
    uploads.add(Upload("b", "file-extract", b"123"))
    with pytest.raises(HttpError) as caught:
        uploads.get(first.id)
    assert caught.value.status == 404
    with pytest.raises(BadRequestError, match="video"):
        uploads.add(Upload("c", "video", b""))


def test_references() -> None:
    uploads = Uploads()
    image, text = Upload("a.png", "image", b"png"), Upload("a.txt", "file-extract", b"text")
    uploads.add(image)
    uploads.add(text)
    head, _, body = uploads.data_url(f"ms://{image.id}").partition(",")
    assert head.startswith("data:image/") and base64.b64decode(body) == b"png"
    for url in (f"ms://{text.id}", "ms://nothing"):
        with pytest.raises(BadRequestError, match="names no image"):
            uploads.data_url(url)
