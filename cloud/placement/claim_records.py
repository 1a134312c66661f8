"""The claims as records: a thin door to `cloud.records`.

kind       key                    body
claim      driver, name           state, and what is not empty of: node, since, lease_s, machine, ids (`Row`)
claim      driver, `Node n1`      state (`Mark`), node
election   driver                 node, epoch, since, why (`Elected`)
"""

from dataclasses import asdict
from typing import Any, Final

from cloud.election import Elected
from cloud.placement.claim import Mark, Row, State
from cloud.records.records import Body, Change, Key, Kind, Records

_NODE: Final = "Node "  # Begins the name of a mark. A claim's name begins with a method.


def changed_claim(driver: str, name: str, row: Row | None) -> Change:
    """The change to a claim. Without a row the record is removed."""
    if row is None:
        return Change(Kind.CLAIM, (driver, name), None)
    body: Body = {"state": row.state}
    for field in ("node", "since", "lease_s", "machine"):
        if value := getattr(row, field):
            body[field] = value
    for kind, id_, node, since, gone in row.ids:
        its = {"kind": kind, "id": id_, "node": node, "since": since}
        body.setdefault("ids", []).append({**its, "gone": gone} if gone else its)
    return Change(Kind.CLAIM, (driver, name), body)


def changed_mark(driver: str, node: str, mark: Mark | None) -> Change:
    """The change to a node's mark. Without one the record is removed."""
    return Change(Kind.CLAIM, (driver, _NODE + node), {"state": mark, "node": node} if mark is not None else None)


def marked_node(name: str) -> str | None:
    """The node whose mark has this name; None: it is the name of a claim."""
    return name.removeprefix(_NODE) if name.startswith(_NODE) else None


def changed_election(driver: str, elected: Elected | None) -> Change:
    """The change to a driver's last election. Without one the record is removed."""
    return Change(Kind.ELECTION, (driver,), asdict(elected) if elected is not None else None)


def read_claims(records: Records) -> tuple[list[tuple[str, str, Row]], list[tuple[str, str, Mark]]]:
    """Driver, name and row of each claim; driver, node and mark of each mark.

    Raises:
        SettingsError: a record cannot be read.
    """
    found = records.take(Kind.CLAIM, read_claim)
    claims = [(driver, name, it) for driver, name, it in found if isinstance(it, Row)]
    return claims, [(driver, name, it) for driver, name, it in found if isinstance(it, Mark)]


def read_elections(records: Records) -> dict[str, Elected]:
    """The last election of each driver.

    Raises:
        SettingsError: a record cannot be read.
    """
    return dict(records.take(Kind.ELECTION, _read_election))


def read_claim(key: Key, body: Body) -> tuple[str, str, Row | Mark]:
    """Driver, name and row of a claim, or driver, node and mark."""
    driver, name = key
    if name.startswith(_NODE):
        return driver, _text(body["node"]), Mark(body["state"])
    row = Row(
        State(body["state"]),
        _text(body.get("node", "")),
        float(body.get("since", 0)),
        int(body.get("lease_s", 0)),
        _text(body.get("machine", "")),
        tuple(map(_read_id, body.get("ids", ()))),
    )
    return driver, name, row


def _read_election(key: Key, body: Body) -> tuple[str, Elected]:
    (driver,) = key
    return driver, Elected(_text(body["node"]), int(body["epoch"]), float(body["since"]), _text(body["why"]))


def _read_id(body: Body) -> tuple[str, str, str, float, float]:
    texts = _text(body["kind"]), _text(body["id"]), _text(body["node"])
    return (*texts, float(body["since"]), float(body.get("gone", 0)))


def _text(value: Any) -> str:  # of a record
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
