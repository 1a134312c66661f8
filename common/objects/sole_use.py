"""A sole use: the fact by which a node claims a volume that one node at a time may have, without an attachment.

That is a volume with no other access modes than ReadWriteOnce and ReadWriteOncePod, of a driver with
`attachRequired: false`. Kubernetes attaches it to no node, and starts a second node's pod as soon as it is scheduled.
The agent claims it before the first staging, and withdraws the claim after unstaging. The hub stores the claim of one
node at a time, and refuses any other one (`cloud.detach.sole_use`).
"""

import hashlib
from typing import Final

from common.objects.objects import Ref

KIND: Final = "SoleUse"  # The kind of the fact. It has no object in Kubernetes.


def sole_use(driver: str, handle: str) -> Ref:
    """The fact about a volume, by its driver and `volume_id`. Claims of two nodes to one volume have the same name."""
    return Ref(KIND, "", "csi-" + hashlib.sha256(f"{driver}^{handle}".encode()).hexdigest())
