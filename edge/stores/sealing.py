"""An object's seal: encryption at rest of objects with credentials, with a key in the agent's state directory.

Rules:

* AES-256-GCM with a random nonce for each body. The object's name and state are authenticated with it, so no row can
  stand in for another one.
* The key is a file of mode 0600, made once. If it is lost, only the sealed bodies are, and the hub sends them again.
"""

import logging
import secrets
from pathlib import Path

from common.objects.objects import Ref, Stamp
from common.store.files import replace_file
from edge.stores.aes_gcm import KEY_BYTES, NONCE_BYTES, cipher

log = logging.getLogger("csi_bridge.edge.stores.sealing")

SEALED_KINDS = frozenset({"Secret", "ServiceAccountToken"})  # kinds whose bodies are on the disk only when sealed


class Sealer:
    """Seals and unseals objects with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = cipher(key)

    def seal(self, ref: Ref, stamp: Stamp, body: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, body, _bound(ref, stamp))

    def unseal(self, ref: Ref, stamp: Stamp, sealed: bytes) -> bytes:
        """The body. Raises ValueError if it was sealed with another key or for another object, or is damaged."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _bound(ref, stamp))
        except ValueError as error:
            raise ValueError(f"{ref} cannot be unsealed") from error


def load_sealer(path: Path) -> Sealer:
    """The sealer with the key of a file. Makes a new key if the file is missing or holds no key."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return Sealer(_make_key(path))
    if len(key) != KEY_BYTES:
        log.error("%s holds no key (%d bytes, not %d): a new one is made", path, len(key), KEY_BYTES)
        return Sealer(_make_key(path))
    if path.stat().st_mode & 0o077:  # as after a restore from a backup
        try:
            path.chmod(0o600)
        except OSError as error:  # a read-only disk: the node must still get its volumes back
            log.error("%s may be read by others, and its mode cannot be changed: %s", path, error.strerror)  # noqa: TRY400  # not a bug
    return Sealer(key)


def _make_key(path: Path) -> bytes:
    # On the disk before it seals a body.
    key = secrets.token_bytes(KEY_BYTES)
    replace_file(path, key, durable=True, mode=0o600)
    return key


def _bound(ref: Ref, stamp: Stamp) -> bytes:
    return "\0".join((ref.kind, ref.namespace, ref.name, stamp.uid, stamp.version)).encode()
