"""A volume error: why a step on a volume failed, and what that says about the volume's state (the kubelet's classes).

    VolumeError
    ├── NotReady    nothing was asked of the driver: the state is what it was (the kubelet's transient error)
    ├── Uncertain   the driver may have done it: it must be undone or repeated (UncertainProgress)
    └── Refused     the driver surely has not done it (a final gRPC code)

Source: kubernetes pkg/volume/util/types and pkg/volume/csi/csi_client.go; contract.md C.7.
"""

from common.errors import BridgeError
from common.status import Code, Status, code_name

NON_FINAL = frozenset({
    Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED,
})  # fmt: skip
"""Codes after which the driver may still be at work, or may have done it (the kubelet's isFinalError)."""


class VolumeError(BridgeError):
    """A step on a volume failed. `str()` is a sentence for people, the same from one try to the next.

    Attributes:
        code: the driver's, or None if it was not the driver's answer.
    """

    def __init__(self, why: str, *, code: int | None = None) -> None:
        self.why, self.code = why, code
        super().__init__(why)


class NotReady(VolumeError):
    """Something that the step needs is not there yet; the driver was not asked."""


class Uncertain(VolumeError):
    """The outcome is not known."""


class Refused(VolumeError):
    """The driver answered with a final code."""


def driver_error(driver: str, method: str, status: Status) -> VolumeError:
    """The error of a driver's answer that is not OK."""
    kind = Uncertain if status.code in NON_FINAL else Refused
    short = method.rsplit("/", 1)[-1]
    return kind(f"driver {driver} answered {short} with {code_name(status.code)}: {status.message}", code=status.code)
