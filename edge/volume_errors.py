"""The errors of steps on a volume, by their meaning for the volume's state (the kubelet's classes).

    VolumeError
    ├── NotReady       the driver was not called: the state has not changed (the kubelet's transient error)
    ├── Uncertain      the driver may have done it: it must be undone or repeated (UncertainProgress)
    └── VolumeRefused  the driver surely has not done it (a final gRPC code)

Source: kubernetes pkg/volume/util/types and pkg/volume/csi/csi_client.go; docs/csi-contract.md#errors-of-node-calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import BridgeError
from common.status import Code

# Codes after which the driver may still be working, or may have finished (the kubelet's isFinalError).
NON_FINAL = frozenset({
    Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED,
})  # fmt: skip


class VolumeError(BridgeError):
    """A step on a volume failed. `str()` is a sentence for people, the same on each try."""

    def __init__(self, why: str, *, code: int | None = None) -> None:
        # `code` is the driver's, UNAVAILABLE if the request was not sent, None for any other reason.
        self.why = why
        self.code = code
        super().__init__(why)


class NotReady(VolumeError):
    """An input of the step is missing; the driver was not called."""


class Uncertain(VolumeError):
    """The outcome is not known."""


class VolumeRefused(VolumeError):
    """The driver answered with a final code."""


def words(error: OSError) -> str:
    return error.strerror or str(error)


@contextmanager
def as_uncertain(what: str) -> Iterator[None]:
    """Make an OSError Uncertain: the agent cannot do `what`."""
    try:
        yield
    except OSError as error:
        raise Uncertain(f"cannot {what}: {words(error)}") from error
