"""A cluster: the objects of a Kubernetes API server, kept up to date.

Rules:

* Each kind has one list and one watch for all nodes. Secrets are read and tokens made one by one, when a node needs
  them (`on_demand`).
* The source is ready when every kind was listed once.
* An object that cannot be used keeps its last good state, and is reported as a problem.
* An item without a name ends its list or watch: nobody could tell which object is missing.
* An object whose trimmed state is equal has not changed: pods and nodes change their status all the time. The
  part of a Node's status that only the hub needs does not count (`node_state`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cloud.kinds import nodes, tokens
from cloud.kinds.rules.fields import FieldError, Fields
from cloud.kinds.rules.kind_rules import check_metadata, trimmed
from cloud.kinds.table import KINDS
from cloud.kinds.tokens import TokenRequest
from cloud.kube.client import RESOURCES, Kube, KubeError
from cloud.sources.cluster.on_demand import OnDemand, SecretReader
from cloud.sources.cluster.reflector import Reflector
from cloud.sources.cluster.token_minter import TokenMinter
from cloud.sources.manifests.manifest_objects import item_of
from cloud.sources.source import Item, Source
from common.objects.objects import Ref

log = logging.getLogger("csi_bridge.hub.cluster")

_ON_DEMAND: Final = ("Secret", tokens.KIND)  # of these, the hub has only the objects that a node needs
WATCHED: Final = tuple(kind for kind in reversed(KINDS) if kind not in _ON_DEMAND)  # pods last: they need the others


class Cluster(Source):
    """A source that follows an API server. `run()` does the work."""

    is_cluster = True

    def __init__(
        self,
        api: Kube,
        *,
        unready: Callable[[str], None] = lambda _node: None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """`unready` is called with the name of a Node that is not Ready, whenever the API server sends it."""
        super().__init__()
        self._problems: dict[Ref, str] = {}
        self._unlisted = set(WATCHED)
        self._unready = unready
        self._minter = TokenMinter(api)
        self._on_demand = {
            "Secret": OnDemand(SecretReader(api), self._found, later=later),
            tokens.KIND: OnDemand(self._minter, self._found, later=later),
        }
        self._reflectors = {kind: Reflector(api, RESOURCES[kind], _Copy(kind, self), pause=pause) for kind in WATCHED}

    def problems(self) -> list[str]:
        troubles = [it.trouble for it in self._reflectors.values() if it.trouble]
        unread = [text for it in self._on_demand.values() for text in it.problems()]
        return [*troubles, *self._problems.values(), *unread]

    @property
    def nodes_trouble(self) -> str:
        return self._reflectors["Node"].trouble

    def knows(self, ref: Ref) -> bool:
        on_demand = self._on_demand.get(ref.kind)
        return on_demand.knows(ref) if on_demand is not None else self.is_ready

    def use(self, ref: Ref, request: TokenRequest | None = None) -> None:
        if request is not None:
            self._minter.want(request)
        if (on_demand := self._on_demand.get(ref.kind)) is not None:
            on_demand.use(ref)

    def release(self, ref: Ref) -> None:
        if (on_demand := self._on_demand.get(ref.kind)) is not None:
            on_demand.release(ref)
            self._minter.release(ref)
            self.gone(ref)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in self._reflectors.values():
                    tasks.create_task(reflector.run())
        finally:
            for on_demand in self._on_demand.values():
                await on_demand.close()

    def read(self, kind: str, body: Mapping[str, Any]) -> tuple[Ref, Item | None]:
        """Read an object of the API server. If it cannot be used, return its last good state; None if there is none.

        Raises KubeError if the object has no name.
        """
        ref = _identify(kind, body)
        fields = Fields(body)
        rules = KINDS[kind]
        metadata = fields.part("metadata")
        try:
            check_metadata(fields, rules=rules)
            metadata.text("uid", required=kind != tokens.KIND)  # a stand-in for tokens has no UID
            rules.check(fields)
            item = item_of(trimmed(body, rules=rules))
            if kind == "Node":
                state = nodes.state_of(fields)
                item = replace(item, state=state)
                if not state.is_ready:
                    self._unready(ref.name)
        except ValueError as error:  # a FieldError, or a text that UTF-8 cannot encode
            self._refuse(ref, str(error))
            known = self.item(ref)
            uid = metadata.body.get("uid")
            is_another = known is not None and isinstance(uid, str) and uid not in {"", known.stamp.uid}
            return ref, None if is_another else known
        self._problems.pop(ref, None)
        return ref, item

    def listed(self, kind: str, items: Mapping[Ref, Item | None]) -> None:
        self._unlisted.discard(kind)
        for ref in [ref for ref in self._problems if ref.kind == kind and ref not in items]:
            del self._problems[ref]
        gone: dict[Ref, Item | None] = dict.fromkeys(set(self.refs(kind)) - items.keys())
        self.update({**items, **gone}, ready=not self._unlisted)

    def gone(self, ref: Ref) -> None:
        self._problems.pop(ref, None)
        self.update({ref: None})

    def _found(self, ref: Ref, body: Mapping[str, Any] | None) -> None:
        before = self.stamp(ref)
        self.update({ref: self.read(ref.kind, body)[1] if body is not None else None})
        if self.stamp(ref) == before:
            self.tell(frozenset({ref}))  # subscribers wait for an answer, even if there is no such object

    def _refuse(self, ref: Ref, why: str) -> None:
        text = f"{ref} cannot be used, and its last good state counts: {why}"
        if self._problems.get(ref) != text:
            log.warning("%s", text)
            self._problems[ref] = text


def _identify(kind: str, body: Mapping[str, Any]) -> Ref:
    try:
        metadata = Fields(body if isinstance(body, dict) else {}).part("metadata", required=True)
        namespace = metadata.text("namespace", required=KINDS[kind].namespaced)
        return Ref(kind, namespace, metadata.text("name", required=True))
    except FieldError as error:
        raise KubeError(f"read {kind}", 0, "", f"the API server's answer is not one: {error}") from None


class _Copy:
    """One kind of a cluster's objects (`reflector.KindCache`)."""

    def __init__(self, kind: str, cluster: Cluster) -> None:
        self._kind = kind
        self._cluster = cluster
        self._listed: dict[Ref, Item | None] = {}

    def begin(self) -> None:
        self._listed = {}

    def add(self, body: Mapping[str, Any]) -> None:
        ref, item = self._cluster.read(self._kind, body)
        self._listed[ref] = item

    def end(self) -> None:
        listed = self._listed
        self._listed = {}
        self._cluster.listed(self._kind, listed)

    def take(self, body: Mapping[str, Any], *, is_gone: bool) -> None:
        ref, item = self._cluster.read(self._kind, body)
        if is_gone:
            self._cluster.gone(ref)
        else:
            self._cluster.update({ref: item})
