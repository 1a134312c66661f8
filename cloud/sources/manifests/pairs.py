"""The pairs of claims and volumes that are bound, in `bindings.json`: a pair stays bound.

Without them, a volume that is written later and fits better would take the place of one that a pod uses.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.store.state_file import read_state, write_state

log = logging.getLogger("csi_bridge.hub.manifests")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Each written claim's volume, and each written volume's claim, also if the other one is gone.

    Both are called by namespace, name and UID, with slashes.
    """

    volume_of: Mapping[str, str] = field(default_factory=dict)
    claim_of: Mapping[str, str] = field(default_factory=dict)


def read_pairs(path: Path) -> Pairs:
    """The stored pairs; none if no file can be read. Raises SettingsError: a newer hub wrote it."""
    try:
        stored = read_state(path, "hub")
        return Pairs(*({str(key): str(it) for key, it in stored[name].items()} for name in ("volume_of", "claim_of")))
    except FileNotFoundError:
        return Pairs()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        log.error("%s cannot be used, so claims that name no volume are matched anew: %s", path, error)  # noqa: TRY400  # not a bug
        return Pairs()


def write_pairs(path: Path, pairs: Pairs) -> None:
    write_state(path, asdict(pairs), mode=0o600)
