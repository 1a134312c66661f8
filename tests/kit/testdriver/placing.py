"""The choice of a node for something new, from a request's topology. Node names in, node names out."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from examples.dirdriver.topology import allowed, matches


def candidates(wanted: pb.TopologyRequirement, key: str, nodes: Sequence[str]) -> Iterator[str]:
    """The nodes that a request allows, the best first, each once.

    Preferred terms come in their order, then requisite ones; without any term every node is allowed (CSI spec,
    TopologyRequirement).

    Args:
        wanted: the request's field, empty if unset.
        key: from `topology_key`.
        nodes: all nodes known; the first is taken where a term leaves the choice.
    """
    terms = [*wanted.preferred, *wanted.requisite]
    seen: set[str] = set()
    for term in terms or [pb.Topology()]:
        for node in nodes:
            if node not in seen and matches(term, key, node) and allowed(wanted, key, node):
                seen.add(node)
                yield node


def place(
    wanted: pb.TopologyRequirement, key: str, nodes: Sequence[str], *, has_room: Callable[[str], bool], what: str
) -> str:
    """The node for something new.

    Args:
        wanted: the request's requirement.
        key: from `topology_key`.
        nodes: where it may go, the default first.
        has_room: whether it fits on a node.
        what: what is placed, for the message.

    Raises:
        CsiError: RESOURCE_EXHAUSTED, which lets the provisioner try another node (CSI spec, CreateVolume Errors).
    """
    allowed_nodes = list(candidates(wanted, key, nodes))
    if not allowed_nodes:
        raise errors.exhausted(f"{what}: accessibility_requirements allow none of the nodes {_listed(nodes)}")
    for node in allowed_nodes:
        if has_room(node):
            return node
    raise errors.exhausted(f"{what}: not enough free capacity on {_listed(allowed_nodes)}")


def _listed(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(nodes))
