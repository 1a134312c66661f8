"""The own storage of a node: PersistentVolumes, and contents of snapshots and groups, whose data no other node has.

Rules:

* A PersistentVolume is of a node's own storage if each term of its nodeAffinity requires a segment that belongs to this
  node alone, and no other node has made its volume. Such a segment is the bridge's own one, or one that the operator
  calls unique (`--unique-topology`). A segment of another key may be a zone, whose storage other nodes reach: it does
  not count.
* A VolumeSnapshotContent is, if its volume is, or if only this node has made its snapshot. If the volume's handle is
  also that of another node's PersistentVolume, its volume does not count.
* The same holds for a VolumeGroupSnapshotContent and any of its volumes: a group is on one node.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial

from cloud.kinds.persistentvolumes import handle_of, node_terms
from cloud.kinds.rules.fields import Body, part
from common.objects.node_selector import choices

# Returns the node that a segment (driver, key and value) belongs to; empty: none, or nobody knows.
Owner = Callable[[str, str, str], str]

Handle = tuple[str, str]  # A driver, and the vendor's id of a volume or snapshot


def own_volumes(
    volumes: Iterable[Body], node: str, owner: Owner, elsewhere: Collection[Handle] = frozenset()
) -> list[Body]:
    """The PersistentVolumes of a node's own storage. Other nodes have made those `elsewhere`."""
    found = ((it, handle) for it in volumes if (handle := handle_of(it)) is not None and handle not in elsewhere)
    return [it for it, (driver, _) in found if _is_tied(it, node, partial(owner, driver))]


def own_contents(
    contents: Iterable[Body], own: Iterable[Body], others: Iterable[Body], made: Collection[Handle]
) -> list[Body]:
    """The VolumeSnapshotContents or VolumeGroupSnapshotContents of a node's own storage; it alone has `made` these."""
    handles = {handle_of(it) for it in own} - {handle_of(it) for it in others}
    found = []
    for content in contents:
        driver = str(part(content, "spec").get("driver", ""))
        source = part(content, "spec", "source")
        volumes = (source.get("volumeHandle", ""), *(source.get("volumeHandles") or ()))
        told = part(content, "status")
        given = {**source, **part(source, "groupSnapshotHandles")}
        names = ("snapshotHandle", "volumeGroupSnapshotHandle")
        thing = next((its[name] for name in names for its in (told, given) if its.get(name)), "")
        if any((driver, volume) in handles for volume in volumes) or (driver, thing) in made:
            found.append(content)
    return found


def _is_tied(volume: Body, node: str, owner: Callable[[str, str], str]) -> bool:
    terms = node_terms(volume)
    return bool(terms) and all(
        any(values and all(owner(key, value) == node for value in values) for key, values in choices(term))
        for term in terms
    )
