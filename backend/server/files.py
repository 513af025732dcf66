"""`/v1/files`: images that a chat refers to as `ms://ID`, and texts that a client wants back as text.

Files live in this process and are gone with it; together they are bounded, and nothing is dropped to make
room, since conversations go on referring to what they were given.
"""

import base64
import re
import time
import uuid
from dataclasses import dataclass, field

from k3agent.backend.chat.template import Json
from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.errors import HttpError
from k3agent.backend.server.fields import shown

SCHEME = "ms://"
PURPOSES = ("file-extract", "image")
_MAX_FILES = 1000
_MAX_BYTES = 256 << 20
_NAME = re.compile(rb'\bname="([^"]*)"')
_FILE_NAME = re.compile(rb'\bfilename="([^"]*)"')
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Upload:
    """One stored file."""

    name: str
    purpose: str
    data: bytes
    id: str = field(default_factory=lambda: f"file-{uuid.uuid4().hex[:24]}")
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self) -> Json:
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.data),
            "created_at": self.created,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


class Uploads:
    """The files of one server."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._files: dict[str, Upload] = {}

    def add(self, upload: Upload) -> None:
        if upload.purpose not in PURPOSES:
            raise BadRequestError(
                f"purpose {shown(upload.purpose)} is not served here; use {' or '.join(PURPOSES)}"
            )
        used = sum(len(other.data) for other in self._files.values())
        if used + len(upload.data) > self._max_bytes or len(self._files) >= _MAX_FILES:
            raise HttpError(
                413,
                "invalid_request_error",
                f"Request exceeds the maximum size: all files together may be {_MAX_FILES} and have"
                f" {self._max_bytes} bytes; delete some",
            )
        self._files[upload.id] = upload

    def all(self) -> list[Upload]:
        return list(self._files.values())

    def get(self, file_id: str) -> Upload:
        upload = self._files.get(file_id)
        if upload is None:
            raise HttpError(404, "resource_not_found_error", f"there is no file {shown(file_id)} here")
        return upload

    def delete(self, file_id: str) -> None:
        del self._files[self.get(file_id).id]

    def data_url(self, url: str) -> str:
        """The image that an `ms://` URL refers to, as a URL that carries it."""
        upload = self._files.get(url.removeprefix(SCHEME))
        if upload is None or upload.purpose != "image":
            raise BadRequestError(f"image url {shown(url)} names no image that was uploaded to this server")
        return "data:image/x;base64," + base64.b64encode(upload.data).decode()


def parse_form(content_type: str, body: bytes) -> Upload:
    """The file and its purpose from a multipart form."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise BadRequestError("a file is uploaded as multipart/form-data with the fields file and purpose")
    boundary = b"--" + (found[1] or found[2]).encode()
    purpose = name = data = None
    for part in (b"\r\n" + body).split(b"\r\n" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        field_name = _NAME.search(head)
        if field_name is None:
            continue
        if field_name[1] == b"purpose":
            purpose = content.decode("utf-8", "replace").strip()
        elif field_name[1] == b"file":
            file_name = _FILE_NAME.search(head)
            name = file_name[1].decode("utf-8", "replace") if file_name else "file"
            data = content
    if data is None or name is None:
        raise BadRequestError("the form has no field file")
    if purpose is None:
        raise BadRequestError("the form has no field purpose")
    return Upload(name[-255:], purpose, data)
