"""An index: the objects of one kind in a source, by a key that they have."""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from cloud.kinds.rules.fields import Body
from cloud.sources.source import Source
from common.objects.objects import Ref

Key = tuple[str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class Index:
    """Follows the source from now on. An object without a key is left out."""

    def __init__(self, source: Source, kind: str, key_of: Callable[[Body], Key | None]) -> None:
        self._source = source
        self._kind = kind
        self._key_of = key_of
        self._keys: dict[Ref, Key] = {}
        self._refs: defaultdict[Key, set[Ref]] = defaultdict(set)
        self._changed(frozenset(source.refs(kind)))
        source.subscribe(self._changed)

    def of(self, key: Key) -> list[Ref]:
        return sorted(self._refs.get(key, ()))

    def has(self, key: Key, ref: Ref) -> bool:
        return self._keys.get(ref) == key

    def _changed(self, refs: frozenset[Ref]) -> None:
        for ref in refs:
            if ref.kind == self._kind:
                self._put(ref)

    def _put(self, ref: Ref) -> None:
        old = self._keys.pop(ref, None)
        body = self._source.body(ref)
        if old is not None:
            discard(self._refs, old, ref)
        if body is not None and (key := self._key_of(body)) is not None:
            self._keys[ref] = key
            self._refs[key].add(ref)


def discard(index: dict[_K, set[_V]], key: _K, value: _V) -> None:
    index[key].discard(value)
    if not index[key]:
        del index[key]
