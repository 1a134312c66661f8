"""A seal: encryption at rest of data with credentials, with a key in a file.

Rules:

* AES-256-GCM with a random nonce for each sealed body. The body's use is authenticated with it, so no body can stand in
  for another one.
* A key file has 32 random bytes, as they are or as base64 text: a Kubernetes Secret is often made from text.
"""

import base64
import binascii
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from common.files import replace_file

KEY_BYTES = 32

_NONCE_BYTES = 12


class Sealer:
    """Seals and unseals with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, body: bytes, *, bound: bytes) -> bytes:
        """The sealed form of a body. `bound` names the body's use, and is no secret."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, body, bound)

    def unseal(self, sealed: bytes, *, bound: bytes) -> bytes:
        """The body of its sealed form.

        Raises:
            ValueError: it was sealed with another key or for something else, or is damaged.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError) as error:
            raise ValueError("it was sealed with another key, or is damaged") from error


def read_key(path: Path) -> bytes:
    """The key in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no key.
    """
    content = path.read_bytes()
    if len(content) == KEY_BYTES:
        return content
    try:
        key = base64.b64decode(b"".join(content.split()), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"holds no key: {KEY_BYTES} bytes, as they are or as base64")
    return key


def make_key(path: Path) -> bytes:
    """Make a new key in a file of mode 0600. It is on the disk before it seals a body.

    Raises:
        OSError: the file cannot be written.
    """
    key = secrets.token_bytes(KEY_BYTES)
    replace_file(path, key, durable=True, mode=0o600)
    return key
