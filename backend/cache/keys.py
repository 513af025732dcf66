"""Content keys: the name of a page is a hash of its tokens and of the name before it, so a key stands for a
whole prefix, and for the model that the root key names."""

import hashlib
from array import array
from collections.abc import Iterable

KEY_BYTES = 20


def root_key(fingerprint: str) -> bytes:
    """The key of the empty prefix under one model, precision, kernel edition and grid."""
    return hashlib.blake2b(fingerprint.encode(), digest_size=KEY_BYTES, person=b"k3agent-root").digest()


def chain_key(parent: bytes, token_ids: Iterable[int]) -> bytes:
    """The key of the prefix that `token_ids` lengthen. Ids may have 63 bits: images have such."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=KEY_BYTES).digest()
