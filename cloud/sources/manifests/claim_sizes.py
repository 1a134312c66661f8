"""The claim sizes: the size of each bound claim, kept across restarts of a hub without Kubernetes.

No node sends a size again after its claim has left the manifests, so the file survives a power cut.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.quantity import parse_bytes
from common.state_file import Form, read_state, write_state

log = logging.getLogger("csi_bridge.hub.manifests")

FORM: Final = Form("hub")
"""Of `claim-sizes.json`: a size by `binding.size_key`."""


class ClaimSizes:
    """The sizes of claims, in the file `claim-sizes.json` of the state directory."""

    def __init__(self, state_dir: Path) -> None:
        """Read the file. Entries that cannot be read count as missing: such a claim gets the size of its volume.

        Raises:
            SettingsError: a newer hub wrote the file.
        """
        self._path = state_dir / "claim-sizes.json"
        self.sizes = self._read()
        """The sizes as of the hub's start."""

    def keep(self, sizes: Mapping[str, str]) -> None:
        """Replace the file, in any thread.

        Raises:
            OSError: it cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_state(self._path, FORM, dict(sizes))

    def _read(self) -> dict[str, str]:
        try:
            state = read_state(self._path, FORM)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s is unreadable, and claims get the size of their volumes: %s", self._path, error)
            return {}
        return {key: size for key, size in state.items() if _is_size(size)}


def _is_size(text: object) -> bool:
    """Whether a text that somebody may have written by hand is a size."""
    try:
        return isinstance(text, str) and parse_bytes(text) >= 0
    except ValueError:
        return False
