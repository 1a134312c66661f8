"""Admission: checks that a peer may have the role and name of its hello. Pure: a table of roles and a comparison.

Over the network the certificate decides:

* It must be for clients (extended key usage clientAuth).
* Its URI `csi-bridge:node:<name>` or `csi-bridge:driver:<name>` has role and name. It must be the only one, but for
  URIs of other drivers: a hub may serve several of them.
* Without such a URI its one common name has them, with the organization: `CN=system:node:<name>`, `O=system:nodes` for
  an edge agent, `CN=csi-bridge:driver:<name>`, `O=csi-bridge:drivers` for a proxy driver.

On the hub's UNIX socket the file's mode and the list of users have decided already. Operators come by that socket
alone.
"""

from dataclasses import dataclass
from enum import StrEnum

from common.errors import CallError, HandshakeRefused
from common.messages import Hello, Reason
from common.net.enrolment import GENERATION_URI, NODE_URI, RIGHT_URI
from common.net.peer import CLIENT_AUTH, Peer
from common.parsers import LONGEST_NAME_CHARS, is_name


class Role(StrEnum):
    """The roles of a hub's peers."""

    EDGE = "edge"
    DRIVER = "driver"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer that the hub has let in: the note at its link (`common.session.link.Link.context`)."""

    role: Role
    since: float
    placement: str


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a role's certificate: `uri` or `common_name`, each followed by the name, and `organization`."""

    uri: str
    common_name: str
    organization: str


# By role. A role without an entry cannot come over the network.
SUBJECTS = {
    Role.EDGE: Subject(NODE_URI, "system:node:", "system:nodes"),
    Role.DRIVER: Subject("csi-bridge:driver:", "csi-bridge:driver:", "csi-bridge:drivers"),
}

_OURS = "csi-bridge:"  # begins each URI of the bridge


def admit(hello: Hello, peer: Peer, *, insecure: bool) -> Role:
    """Return the peer's role. With `insecure` (loopback without TLS) its names count. Raises HandshakeRefused."""
    try:
        role = Role(hello.role)
    except ValueError:
        shown = hello.role[:LONGEST_NAME_CHARS]
        raise HandshakeRefused(Reason.ROLE, f"a hub does not know the role {shown!r}") from None
    _check_text(role, "name", hello.name, needed=role is not Role.OPERATOR)
    _check_text(role, "instance", hello.instance, needed=False)
    if role is Role.EDGE and not is_name(hello.name):
        raise HandshakeRefused(
            Reason.NAME,
            f"{hello.name!r} is no node's name: it has lower-case letters, digits, dashes and dots (RFC 1123)",
        )
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


def foreign_driver(proxy: str, driver: str) -> CallError:
    return CallError(
        f"proxy driver {proxy} may call only its own driver at this hub, not {driver}; check its --drivername"
    )


def certified(peer: Peer) -> str:
    """The names in a certificate, for people: its URIs of the bridge, or its CN and O; empty without one."""
    uris = _identities(peer)
    if uris:
        return ", ".join(uris)
    names = [f"CN={name}" for name in peer.common_names] + [f"O={name}" for name in peer.organizations]
    return " ".join(names)


def _check_text(role: Role, what: str, text: str, *, needed: bool) -> None:
    # It goes into lines of the log, which no peer may break.
    if len(text) > LONGEST_NAME_CHARS or not text.isprintable() or (needed and not text):
        raise HandshakeRefused(Reason.NAME, f"the {role} gave no usable {what} ({len(text)} characters)")


def _check_certificate(role: Role, name: str, peer: Peer) -> None:
    wanted = SUBJECTS[role]
    uris = _identities(peer)
    if uris:
        own = wanted.uri + name
        fits = own in uris and all(it == own or (role is Role.DRIVER and it.startswith(wanted.uri)) for it in uris)
    else:
        fits = peer.common_names == (wanted.common_name + name,) and wanted.organization in peer.organizations
    if not fits:
        raise HandshakeRefused(
            Reason.CERTIFICATE,
            f"the peer says that it is {role} {name}, but its certificate is for {certified(peer) or 'nobody'}; it "
            f"needs one for {wanted.uri}{name}, or for CN={wanted.common_name}{name} O={wanted.organization}",
        )
    # A hub's own certificate, which is for servers, must not pass for that of a node or a proxy driver.
    if CLIENT_AUTH not in (peer.purposes or ()):
        raise HandshakeRefused(
            Reason.CERTIFICATE,
            f"the certificate of {role} {name} is not for clients; it needs the extended key usage clientAuth",
        )


def _identities(peer: Peer) -> list[str]:
    return [uri for uri in peer.uris if uri.startswith(_OURS) and not uri.startswith((GENERATION_URI, RIGHT_URI))]
