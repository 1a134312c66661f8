"""A receiver: the object that a stream tells what comes on it. An ordinary call has one without a task or a future."""

from common.errors import CallTimeout, TunnelClosed
from common.status import Status


class Receiver:
    """Takes what comes on one stream, at once: no method waits.

    It answers with the link's methods `send`, `end`, `acknowledge`, `cancel` and `consumed`, and the stream's id. It
    may also use and start other streams, on this link and on others. If it raises, its session ends.
    """

    __slots__ = ()

    def took(self, message: bytes) -> None:
        """A whole message came. Call `link.consumed(stream_id, len(message))` when its memory is free again."""

    def ended(self, status: Status, message: bytes | None) -> None:
        """The acceptor ended a stream that this side opened. Call `link.acknowledge` now or later.

        `message` is the last one of a unary answer, which `took` has not told.
        """

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        """A stream that this side opened ended without the acceptor's status. It is over."""

    def left(self) -> None:
        """The opener of an accepted stream no longer waits. `released` follows."""

    def released(self, delivered: bool) -> None:  # noqa: FBT001  # the Ack's only field
        """An accepted stream is over for both sides. `delivered`: the answer reached the caller."""

    def writable(self) -> None:
        """Every message that was given to `send` has left. Called once after `Link.watch_unsent` has found some."""


NOBODY = Receiver()  # the receiver of an accepted stream until the application has given one
