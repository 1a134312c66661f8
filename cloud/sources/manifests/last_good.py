"""The last good objects: the manifests' objects as nodes got them last, on the hub's disk, for a restarted hub.

Rules:

* The hub reads them only if the manifests are broken at its start.
* They have Secrets. So the file is sealed (`common.sealing`), and only the hub's user may read it.
* The file never has older objects than the nodes: if it cannot be replaced, it is removed.
"""

import contextlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path

from cloud.sources.manifests.manifest_objects import Entry, entry_of
from common.files import replace_file
from common.objects import encode_body
from common.sealing import Sealer

log = logging.getLogger("csi_bridge.hub.manifests")

BOUND = b"manifests"
"""What the seal of the file is bound to."""


class LastGood:
    """The file. Used by one thread at a time."""

    def __init__(self, path: Path, sealer: Sealer) -> None:
        self._path, self._sealer = path, sealer

    def read(self) -> list[Entry] | None:
        """The objects; None if they are not known."""
        try:
            stored = json.loads(self._sealer.unseal(self._path.read_bytes(), bound=BOUND))
            return [entry_of(body, "the last good manifests") for body in stored["items"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("%s cannot be used, so the last good manifests are not known: %s", self._path, error)  # noqa: TRY400  # not a bug
            return None

    def write(self, entries: Iterable[Entry]) -> None:
        """Replace the objects.

        Raises:
            OSError: the disk refused, and no objects are stored now.
        """
        data = encode_body({"items": [entry.item.body for entry in entries]})
        try:
            if self._path.exists():
                with contextlib.suppress(ValueError):
                    if self._sealer.unseal(self._path.read_bytes(), bound=BOUND) == data:  # as after most restarts
                        return
            replace_file(self._path, self._sealer.seal(data, bound=BOUND), durable=False, mode=0o600)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
