"""The node ids: finds nodes to which a driver gave the same id (docs/csi-contract.md#node-ids-are-never-rewritten)."""

from collections.abc import Iterator, Mapping
from typing import Final

from cloud.sync.fact_kinds import Fact
from common.errors import cut, first_of
from common.objects import Ref

_SHOWN_CHARS: Final = 100  # of a node id in a sentence
_MOST_SHOWN: Final = 10  # nodes in a sentence


def id_conflicts(facts: Mapping[str, Mapping[Ref, Fact]]) -> Iterator[str]:
    holders: dict[tuple[str, str], set[str]] = {}
    for node, told in facts.items():
        fact = told.get(Ref("CSINode", "", node))
        for driver in fact.body["spec"]["drivers"] if fact is not None else ():
            holders.setdefault((driver["name"], driver["nodeID"]), set()).add(node)
    for (driver, node_id), nodes in sorted(holders.items()):
        if len(nodes) > 1:
            yield (
                f"CSI driver {driver} gave the node ID {cut(node_id, _SHOWN_CHARS)!r} on the nodes "
                f"{first_of(sorted(nodes), _MOST_SHOWN)}: "
                f"volumes may be attached to the wrong one; let the driver give each node an ID of its own "
                f"(mostly its flag --nodeid, from spec.nodeName)"
            )
