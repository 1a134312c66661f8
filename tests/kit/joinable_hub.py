"""A hub that lets nodes join, with its operator, for attacks on it."""

from pathlib import Path

from common.messages import Goodbye, Kind
from common.net.enrolment import Issued, Join, JoinRefused, JoinToken, Renew, parse_token
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.enrolling import NodeKey, ask, trusting
from tests.kit.operator import by_hand
from tests.kit.ports import free_ports
from tests.kit.stranger import Stranger, hello


class JoinableHub:
    def __init__(self, bridge: Bridge, directory: Path, *flags: str) -> None:
        self.directory, self.authority = directory, Authority(directory)
        (port,) = free_ports(1)
        self.joins = f"127.0.0.1:{port}"
        self.flags = [
            *self.authority.hub().flags,
            f"--ca-key={self.authority.key_path}",
            f"--join-listen={self.joins}",
            "--cert-ttl=10m",
            *flags,
        ]
        self.hub = bridge.start_hub(*self.flags)

    def operator(self, *words: str) -> str:
        told = by_hand(*words, f"--hub=unix://{self.hub.uds}")
        assert (told.returncode, told.stderr) == (0, "")
        return told.stdout

    def token(self, *words: str) -> JoinToken:
        return parse_token(self.operator("token", "create", *words))

    def dial(self, role: str = "edge") -> Stranger:
        stranger = Stranger(self.joins, tls=trusting(self.authority.path))
        stranger.greet(hello(role, "n1"))
        return stranger

    def join(self, token: JoinToken, node: str, key: NodeKey | None = None) -> NodeKey | JoinRefused:
        key = key or NodeKey()
        with self.dial() as stranger:
            answer = ask(stranger, Join(token.id, token.secret, node, key.request), Kind.JOIN)
        if isinstance(answer, Issued):
            key.issued = answer
            return key
        assert isinstance(answer, JoinRefused)
        return answer

    def refusal(self, token: JoinToken, node: str) -> JoinRefused:
        found = self.join(token, node)
        assert isinstance(found, JoinRefused)
        return found

    def joined(self, node: str, *flags: str) -> NodeKey:
        found = self.join(self.token(f"--node={node}", *flags), node)
        assert isinstance(found, NodeKey)
        return found

    def connect(self, key: NodeKey, node: str, *, boot: int = 1) -> Stranger:
        """A link to the main port, on which nothing has been said."""
        stranger = Stranger(self.hub.address, tls=key.client(self.authority.path, self.directory))
        stranger.upgrade()
        stranger.frames(hello("edge", node, boot=boot))
        return stranger

    def outcome(self, key: NodeKey, node: str) -> str:
        """`welcome`, or the reason of the hub's goodbye to a node with this key."""
        with self.connect(key, node) as link:
            frame = link.next_frames()[0]
            return frame.reason if isinstance(frame, Goodbye) else "welcome"

    def renew(self, key: NodeKey, node: str) -> NodeKey:
        """The next key of a node, which renews over a link to the main port and has not used it yet."""
        following = NodeKey()
        with self.connect(key, node) as link:
            link.receive()
            answer = ask(link, Renew(following.request), Kind.RENEW)
        assert isinstance(answer, Issued), answer
        following.issued = answer
        return following
