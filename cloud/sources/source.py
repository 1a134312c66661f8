"""A source: the objects of a cluster, kept in memory, and who is told when they change.

Rules:

* Nothing is told to a node before the source is ready, which is when it has told every object once: what is missing
  before that may only not have come yet, and a node would tear down what belongs to it.
* Some may be unknown all the same: nobody is told that such a one is gone (`knows`).
* Bodies are shared and must not be changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cloud.kinds.fields import Body
from cloud.kinds.tokens import TokenRequest
from common.objects import Ref, Stamp

Changed = Callable[[frozenset[Ref]], None]
"""Called on the loop, once for all that changed together; with nothing when the source became ready."""


class Source(Protocol):
    """Where the closures get objects from."""

    @property
    def is_ready(self) -> bool:
        """Whether every object was told once."""

    def refs(self, kind: str) -> Iterable[Ref]:
        """All objects of a kind, in no order."""

    def stamp(self, ref: Ref) -> Stamp | None:
        """The state of an object; None if there is none."""

    def body(self, ref: Ref) -> Body | None:
        """An object as `kind_rules.trimmed` leaves it; None if there is none."""

    def knows(self, ref: Ref) -> bool:
        """Whether what `stamp` says of an object is so: it may not have been asked for yet, or in vain."""

    def use(self, ref: Ref, request: TokenRequest | None = None) -> None:
        """An object is needed from now on; of tokens: these, also in place of those of before."""

    def release(self, ref: Ref) -> None:
        """It is needed no more."""

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        """Be told of every change from now on, until the function returned is called."""


@dataclass(frozen=True, slots=True)
class Item:
    """An object in one state."""

    stamp: Stamp
    body: Body


class Objects:
    """The objects of a source (`Source`), for whoever fills them."""

    def __init__(self) -> None:
        self.is_ready = False
        self._kinds: dict[str, dict[Ref, Item]] = {}
        self._subscribers: list[Changed] = []

    def refs(self, kind: str) -> Iterable[Ref]:
        """All objects of a kind, in no order."""
        return self._kinds.get(kind, {}).keys()

    def item(self, ref: Ref) -> Item | None:
        """An object in its present state; None if there is none."""
        return self._kinds.get(ref.kind, {}).get(ref)

    def stamp(self, ref: Ref) -> Stamp | None:
        """The state of an object; None if there is none."""
        item = self.item(ref)
        return item.stamp if item is not None else None

    def body(self, ref: Ref) -> Body | None:
        """An object; None if there is none."""
        item = self.item(ref)
        return item.body if item is not None else None

    def knows(self, ref: Ref) -> bool:  # noqa: ARG002  # the protocol's
        """Whether what `stamp` says of an object is so. Here all objects come together."""
        return self.is_ready

    def use(self, ref: Ref, request: TokenRequest | None = None) -> None:
        """An object is needed from now on. Nothing to do where all objects are there anyway."""

    def release(self, ref: Ref) -> None:
        """It is needed no more."""

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        """Be told of every change from now on, until the function returned is called."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def update(self, items: Mapping[Ref, Item | None], *, ready: bool | None = None) -> None:
        """Put these objects into the place of what there was; None: there is none any more."""
        changed = frozenset(ref for ref, item in items.items() if self._put(ref, item))
        became_ready = bool(ready) and not self.is_ready
        if ready is not None:
            self.is_ready = ready
        for news in [changed] * bool(changed) + [frozenset()] * became_ready:
            self.tell(news)

    def tell(self, refs: frozenset[Ref]) -> None:
        """Tell whoever wants to know of it."""
        for tell in list(self._subscribers):
            tell(refs)

    def _put(self, ref: Ref, item: Item | None) -> bool:
        """Whether this changed anything."""
        if self.stamp(ref) == (item.stamp if item is not None else None):
            return False
        if item is None:
            del self._kinds[ref.kind][ref]
        else:
            self._kinds.setdefault(ref.kind, {})[ref] = item
        return True
