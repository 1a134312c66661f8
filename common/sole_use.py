"""The sole use of a volume: one node at a time may have it mounted, although Kubernetes attaches it to none.

That is a volume with no other access modes than ReadWriteOnce and ReadWriteOncePod, of a driver with
`attachRequired: false`. Kubernetes starts a second node's pod as soon as it is scheduled. The hub withholds the volume
from that node (`cloud.sole_use`).

Rules:

* An agent lists such a volume in the `volumesInUse` of its fact about the Node. It stages it for the first time only
  when the hub has stored that, and has confirmed on the present link that the agent's objects are complete. So a volume
  that is not listed is not mounted, and an old copy of a PersistentVolume mounts nothing.
* An agent that does so tells it in the same fact, as `status.soleUse: true`. Earlier agents and kubelets do not.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

TOLD: Final = "soleUse"
"""The field of the Node's status."""

_SINGLE_WRITER: Final = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})


def is_sole(access_modes: Collection[str], *, attach_required: bool) -> bool:
    """Whether a volume is one node's at a time. Without access modes it counts as ReadWriteOnce, as for the agent."""
    return not attach_required and _SINGLE_WRITER.issuperset(access_modes)


def is_told(status: Mapping[str, Any]) -> bool:
    """Whether an agent lists such volumes, from the status of its fact about the Node."""
    return status.get(TOLD) is True
