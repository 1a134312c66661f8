"""The audit log: a logger of its own, with the admissions, joins, refusals and orders.

Rules:

* A line is written at INFO like any other (`common.observe.logs`): `event`, `who`, `address`, and the event's own
  fields.
* An event that peers cause has a line limit for each peer. Orders of operators have none.
* A line holds names, addresses and reasons, but no secret.
"""

import logging
from enum import StrEnum
from typing import Final

from common.observe.logs import of_peer

log = logging.getLogger("csi_bridge.audit")


class Event(StrEnum):
    """An event of the audit log: the word in the field `event` of its line. A closed set."""

    START = "start"  # the hub started
    ADMISSION = "admission"  # an edge agent, a proxy driver or an operator was admitted
    TAKEOVER = "takeover"  # a later link of a node replaced the earlier one
    # A second machine claimed the name of a connected node, or a second node something that belongs to one node
    CONFLICT = "conflict"
    REFUSAL = "refusal"  # a peer, a stream of it or a call was refused
    EXPIRY = "expiry"  # a link ended because its certificate did
    TOKEN = "token"  # noqa: S105  # the word of an event  # an operator made or revoked a join token
    JOIN = "join"  # a node showed a token and got a certificate
    RENEWAL = "renewal"  # a node got its next certificate, or its next key authenticated for the first time
    COPY = "copy"  # a certificate that a later one has replaced appeared
    DENIAL = "denial"  # an operator denied a node or a certificate
    ALLOWANCE = "allowance"  # an operator allowed a node or a certificate again
    FENCE = "fence"  # an operator took a node for dead or took that back, or such a node is back
    ORDER = "order"  # an operator gave another order, such as `forget`, `trust` or a call by hand
    REPORT = "report"  # a node's report of a driver was refused, or is no longer refused
    CERTIFICATES = "certificates"  # the hub read other CAs


# The events that a peer can cause as often as it likes.
_BY_PEERS: Final = frozenset({
    Event.ADMISSION, Event.TAKEOVER, Event.CONFLICT, Event.REFUSAL, Event.EXPIRY, Event.RENEWAL, Event.COPY,
    Event.REPORT,
})  # fmt: skip


def add(event: Event, *, who: str, address: str = "", peer: str = "", **details: str | int | list[str]) -> None:
    """Write the line of an event. `details` are further fields; empty ones are left out.

    `who` is the name that the peer has proved, or that it claims if it has proved none; or the operator. `address` is
    where it connected from; for an operator its user id. The lines of a `peer` (else of `who`) are limited together.
    """
    fields: dict[str, str | int] = {"event": event, "who": who, "address": address}
    fields |= {name: ", ".join(value) if isinstance(value, list) else value for name, value in details.items()}
    extra: dict[str, object] = {"fields": {name: value for name, value in fields.items() if value != ""}}
    if event in _BY_PEERS:
        extra |= of_peer(peer or who)
    log.info(event, extra=extra)
