"""A source: the objects of a cluster in memory, with subscribers for changes.

Rules:

* The hub sends nothing to nodes before the source is ready, that is, before it has delivered every object once. An
  object that is missing earlier may only be late, and a node would take it for deleted.
* A ready source may still not know some objects (`knows`). Then the hub tells no node that they are gone.
* Bodies are shared and must not be changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cloud.kinds.nodes import NodeState
from cloud.kinds.rules.fields import Body
from cloud.kinds.tokens import TokenRequest
from common.objects.objects import Ref, Stamp

# Called on the loop with all objects that changed together; with an empty set when the source became ready.
Changed = Callable[[frozenset[Ref]], None]


@dataclass(frozen=True, slots=True)
class Item:
    """An object in one state."""

    stamp: Stamp
    body: Body
    state: NodeState | None = None  # of a Node in a cluster; no part of the stamp


class Source:
    """The objects of a source. A subclass fills them."""

    is_cluster = False  # whether they are those of a cluster, whose Nodes have a state

    def __init__(self) -> None:
        self.is_ready = False  # whether every object was delivered once
        self._kinds: dict[str, dict[Ref, Item]] = {}
        self._subscribers: list[Changed] = []

    def refs(self, kind: str) -> Iterable[Ref]:
        return self._kinds.get(kind, {}).keys()

    def item(self, ref: Ref) -> Item | None:
        return self._kinds.get(ref.kind, {}).get(ref)

    def stamp(self, ref: Ref) -> Stamp | None:
        item = self.item(ref)
        return item.stamp if item is not None else None

    def body(self, ref: Ref) -> Body | None:
        """A trimmed object (`kind_rules.trimmed`); None if there is none."""
        item = self.item(ref)
        return item.body if item is not None else None

    def node_state(self, name: str) -> NodeState | None:
        """The state of a Node; None if there is no such Node, or no cluster."""
        item = self.item(Ref("Node", "", name))
        return item.state if item is not None else None

    @property
    def nodes_trouble(self) -> str:
        """Why the states of Nodes may be out of date, in a sentence; empty while they are up to date."""
        return ""

    def knows(self, ref: Ref) -> bool:  # noqa: ARG002  # the protocol's
        """Whether `stamp` is right: a Secret, for example, may not have been read yet. Here all come together."""
        return self.is_ready

    def use(self, ref: Ref, request: TokenRequest | None = None) -> None:
        """Provide an object from now on. For tokens, `request` replaces the earlier one. Here all are there."""

    def release(self, ref: Ref) -> None:
        """Provide the object no more. Here all stay."""

    def subscribe(self, changed: Changed) -> None:
        self._subscribers.append(changed)

    def update(self, items: Mapping[Ref, Item | None], *, ready: bool | None = None) -> None:
        """Replace these objects, or remove them (None), and tell the subscribers."""
        changed = frozenset(ref for ref, item in items.items() if self._put(ref, item))
        became_ready = bool(ready) and not self.is_ready
        if ready is not None:
            self.is_ready = ready
        for news in [changed] * bool(changed) + [frozenset()] * became_ready:
            self.tell(news)

    def tell(self, refs: frozenset[Ref]) -> None:
        for changed in self._subscribers:
            changed(refs)

    def _put(self, ref: Ref, item: Item | None) -> bool:
        before = self.stamp(ref)
        if item is not None:
            self._kinds.setdefault(ref.kind, {})[ref] = item
        elif before is not None:
            del self._kinds[ref.kind][ref]
        return before != self.stamp(ref)
