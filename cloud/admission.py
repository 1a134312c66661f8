"""Admission: checks that a peer may have the role and name of its hello. Pure: a table of roles and a comparison.

Over the network the certificate decides: `CN=system:node:<name>`, `O=system:nodes` for an edge agent,
`CN=csi-bridge:driver:<name>`, `O=csi-bridge:drivers` for a proxy driver on another host. On the hub's UNIX socket the
file's mode and the list of users have decided already. Operators come by that socket alone.
"""

from dataclasses import dataclass
from enum import StrEnum

from common.errors import HandshakeRefused
from common.messages import Hello, Reason
from common.parsers import LONGEST_NAME_CHARS
from common.peer import Peer


class Role(StrEnum):
    """The roles of a hub's peers."""

    EDGE = "edge"
    DRIVER = "driver"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer that the hub has let in: the note at its link (`common.link.Link.context`).

    Attributes:
        role: its role.
        since: when it came, in seconds since the epoch.
        placement: how its calls are placed (`cloud.placement.placement.Mode`); empty for an operator.
    """

    role: Role
    since: float
    placement: str


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a role's certificate: `common_name` followed by the hello's name, and `organization`."""

    common_name: str
    organization: str


SUBJECTS = {
    Role.EDGE: Subject("system:node:", "system:nodes"),
    Role.DRIVER: Subject("csi-bridge:driver:", "csi-bridge:drivers"),
}
"""The certificate of each role. A role without an entry cannot come over the network."""


def admit(hello: Hello, peer: Peer, *, insecure: bool) -> Role:
    """Return the peer's role.

    Args:
        hello: the peer's hello.
        peer: the transport's knowledge of the peer.
        insecure: the hub listens without TLS (loopback only) and believes the names.

    Raises:
        HandshakeRefused: the peer may not have this role or name.
    """
    try:
        role = Role(hello.role)
    except ValueError:
        shown = hello.role[:LONGEST_NAME_CHARS]
        raise HandshakeRefused(Reason.ROLE, f"a hub does not know the role {shown!r}") from None
    _check_text(role, "name", hello.name, needed=role is not Role.OPERATOR)
    _check_text(role, "instance", hello.instance, needed=False)
    if peer.local:
        if role is Role.EDGE:
            raise HandshakeRefused(
                Reason.ROLE, "an edge agent must connect over the network (--listen), not to the hub's UNIX socket"
            )
    elif role is Role.OPERATOR:
        raise HandshakeRefused(Reason.ROLE, "an operator must connect to the hub's UNIX socket")
    elif not insecure:
        _check_certificate(role, hello.name, peer)
    return role


def _check_text(role: Role, what: str, text: str, *, needed: bool) -> None:
    if len(text) > LONGEST_NAME_CHARS or not text.isprintable() or (needed and not text):
        raise HandshakeRefused(Reason.NAME, f"the {role} gave no usable {what} ({len(text)} characters)")


def _check_certificate(role: Role, name: str, peer: Peer) -> None:
    wanted = SUBJECTS[role]
    if peer.common_names != (wanted.common_name + name,) or wanted.organization not in peer.organizations:
        raise HandshakeRefused(
            Reason.CERTIFICATE,
            f"the peer says that it is {role} {name}, but its certificate is for CN={','.join(peer.common_names)} "
            f"O={','.join(peer.organizations)}; it needs one for CN={wanted.common_name}{name} O={wanted.organization}",
        )
