"""Frames as if no message were within an Open or an End: most tests look at messages alone."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from common.messages import Chunk, End, Frame, Open


def apart(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield the frames, each message of one chunk as a Chunk of its own."""
    for frame in frames:
        if isinstance(frame, Open) and frame.has_first:
            yield replace(frame, has_first=False, first=b"")
            yield Chunk(frame.stream, 0, frame.first)
        elif isinstance(frame, End) and frame.has_last:
            yield Chunk(frame.stream, 0, frame.last)
            yield replace(frame, has_last=False, last=b"")
        else:
            yield frame
