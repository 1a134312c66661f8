"""A peer with the parts of a certificate that a test gives it, and no real certificate."""

from dataclasses import dataclass

from common.net.peer import Peer


@dataclass(frozen=True)
class ShownPeer(Peer):
    """A peer whose certificate has these parts."""

    certificate: bytes = b"not read"
    common_names: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    issuer: bytes = b""
    key: str = ""
