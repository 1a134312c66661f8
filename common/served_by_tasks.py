"""A link handler whose streams are served by tasks: one for each stream that the peer opens."""

from common.link import Link, Stream
from common.messages import Open
from common.receiver import Receiver


class ServedByTasks:
    """A base for link handlers (`common.link.LinkHandler`)."""

    def opened(self, link: Link, frame: Open, deadline: float | None) -> Receiver:
        """Let a task serve the stream."""
        return link.served(frame, deadline, self.serve)

    async def serve(self, stream: Stream) -> None:
        """Serve an accepted stream and end it. A raised error becomes its status. Cancelled if the opener leaves."""
        raise NotImplementedError
