"""A link handler whose streams are served by tasks: one for each stream that the peer opens."""

from common.errors import NotCarried
from common.link import Link, Stream
from common.messages import Open
from common.receiver import Receiver
from common.status import Origin


class ServedByTasks:
    """A base for link handlers (`common.link.LinkHandler`), and one itself, for an end that only opens streams."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def greeted(self, link: Link) -> None:
        """Do nothing: this end has dialled."""

    def called(self, link: Link, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        return link.served(frame, deadline, self.serve, request)

    def opened(self, link: Link, frame: Open, deadline: float | None) -> Receiver:
        return link.served(frame, deadline, self.serve)

    async def serve(self, stream: Stream) -> None:  # noqa: ARG002  # a subclass serves it
        """Serve an accepted stream and end it. A raised error becomes its status. Cancelled if the opener leaves."""
        raise NotCarried("a stream", "this end of the link serves none")

    def draining(self, link: Link, message: str) -> None:
        """Do nothing: the peer first finishes what is under way."""

    def refused(self, link: Link, reason: str, message: str) -> None:
        """Do nothing: `dial` raises the reason."""

    def closed(self, link: Link, reason: str, message: str) -> None:
        """Do nothing: the streams under way raise the reason."""
