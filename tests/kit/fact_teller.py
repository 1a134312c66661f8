"""A fact teller: an admitted node's stream of facts, spoken by a test, which may tell the hub anything.

A test uses it so:

    with Stranger(hub.address) as stranger:
        teller = FactTeller(stranger, "n1")
        assert teller.tell(Object(...)) == [""]
"""

from collections import deque

from common.messages import Chunk, Credit, End, Goodbye, Kind, Open, Ping, Pong, Priority, encode_chunk
from common.objects.digest import digest_of
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sync import BUDGET_BYTES
from common.objects.sync_messages import Differ, Digest, Refused, Stored, SyncMessage, decode, encode, put
from tests.kit.stranger import Stranger, hello

_STREAM = 1
_CHUNK_BYTES = 16_384
_MOST_KEY_BYTES = 1_000


class Ended(Exception):
    """The hub ended the stream or the session."""


def wait_judging(stranger: Stranger, node: str) -> None:
    """Wait, as a node's agent, until the hub has read its source, and so judges facts by the closures."""
    stranger.greet(hello("edge", node))
    question = encode(Digest(BUDGET_BYTES, digest_of({})))
    stranger.frames(Open(_STREAM, Kind.SYNC, Priority.SYNC, "", "", "", "", 0), Chunk(_STREAM, 0, question))
    while not isinstance(found := stranger.receive(), list) or not any(isinstance(it, Chunk) for it in found):
        assert isinstance(found, list), found


def claim_fact(name: str, *, padding: int) -> Object:
    """A fact of about `padding` bytes about a claim."""
    condition = {"type": "NodeResizeError", "status": "True", "message": "x" * padding}
    body = {"status": {"capacity": {"storage": "1Gi"}, "conditions": [condition]}}
    return Object(Ref("PersistentVolumeClaim", "default", name), Stamp("", "1"), encode_body(body))


class FactTeller:
    def __init__(self, stranger: Stranger, node: str) -> None:
        """Greet as the node's agent, open the stream, and ask for no list of the hub's copy."""
        self._stranger = stranger
        theirs = stranger.greet(hello("edge", node))
        self._credit = {0: theirs.session_window_bytes, _STREAM: theirs.stream_window_bytes}
        self._message = b""
        self._heard: deque[SyncMessage] = deque()
        self._seq = self._stored = 0
        self._refused: dict[int, str] = {}
        stranger.frames(Open(_STREAM, Kind.FACTS, Priority.SYNC, "", "", "", "", 0))
        assert isinstance(self._next(), Digest)
        self._send(encode(Differ(b"")))

    def tell(self, *facts: Object) -> list[str]:
        """Tell facts; return for each an empty text, or the reason of the hub's refusal."""
        first = self._seq + 1
        told = 0
        for fact in facts:
            if told + len(fact.body) > BUDGET_BYTES // 2:
                self.wait()
                told = 0
            told += len(fact.body) + _MOST_KEY_BYTES
            self.send(fact)
        refused = self.wait()
        return [refused.get(seq, "") for seq in range(first, self._seq + 1)]

    def send(self, fact: Object) -> None:
        """Tell a fact, and wait for no answer."""
        self._seq += 1
        self._send(encode(put(self._seq, fact)))

    def wait(self) -> dict[int, str]:
        """Wait until the hub has stored or refused everything; return the reasons of its refusals, by number."""
        while self._stored < self._seq:
            said = self._next()
            if isinstance(said, Stored):
                self._stored = said.seq
            elif isinstance(said, Refused):
                self._refused[said.seq] = said.why
        return self._refused

    def _send(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            part = data[start : start + _CHUNK_BYTES]
            while min(self._credit.values()) < len(part):
                self._read()
            for place in self._credit:
                self._credit[place] -= len(part)
            left = len(data) - start - len(part)
            self._stranger.websocket(encode_chunk(_STREAM, left, part))

    def _next(self) -> SyncMessage:
        while not self._heard:
            self._read()
        return self._heard.popleft()

    def _read(self) -> None:
        """Take the session's next frames, and give the hub its credit back."""
        found = self._stranger.receive()
        if not isinstance(found, list):
            raise Ended(found)
        for frame in found:
            match frame:
                case Chunk(stream, left, payload):
                    self._stranger.frames(Credit(stream, len(payload)), Credit(0, len(payload)))
                    self._message += payload
                    if not left:
                        self._heard.extend(decode(self._message))
                        self._message = b""
                case Credit(stream, amount):
                    self._credit[stream] += amount
                case Ping(number):
                    self._stranger.frames(Pong(number))
                case End() | Goodbye():
                    raise Ended(frame)
