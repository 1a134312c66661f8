"""The abandonment: an operator's order to release the own storage of a node, and to forget the node.

Rules:

* The node must be denied and away. So it cannot come back in the middle: while a pass runs, the hub does not undo the
  denial, and each pass looks again.
* The Node in Kubernetes must be gone, or one that the hub made: a kubelet that runs would lose volumes under its pods.
* The hub forgets the node last. Until then it knows the node's segments, and so a later order goes on with the same
  objects.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from cloud.abandon.node_ends import NodeEnds
from cloud.abandon.own_storage import Handle, Records
from cloud.abandon.release import NotReleased, Pass, Release
from cloud.placement.requests import GROUP, SNAPSHOT, VOLUME
from cloud.trust import audit
from cloud.trust.audit import Event
from common.errors import OperatorRefused
from common.operator_orders import BLOCKS, KEPT, RELEASED, Abandon, Abandoned

log = logging.getLogger("csi_bridge.hub")


class Abandonment:
    """Carries out the order, one pass at a time."""

    def __init__(self, ends: NodeEnds, release: Release | None, forget_facts: Callable[[str], Awaitable[None]]) -> None:
        """For one hub.

        Args:
            ends: the parts of the hub.
            release: releases storage; None: the hub follows no cluster.
            forget_facts: forgets a node's facts, and deletes the Node that the hub made for it.
        """
        self._ends, self._release, self._forget_facts = ends, release, forget_facts
        self._at_work: set[str] = set()
        ends.denials.why_kept = self._why_kept

    async def order(self, order: Abandon, by: str) -> Abandoned:
        """Make one pass; a dry one if the operator is not sure yet.

        Raises:
            OperatorRefused: the node may come back, there is no cluster, or the cluster refuses.
        """
        node, what = order.node, f"edge node {order.node} is not abandoned"
        self._check(node, what)
        if self._release is None:
            raise OperatorRefused(what, "the hub follows no Kubernetes cluster; delete the manifests of its volumes")
        if not order.sure:
            return _dry(node, await self._pass(self._release, node, what, is_dry=True))
        audit.add(Event.ORDER, who="operator", address=by, order="abandon", node=node)
        self._at_work.add(node)
        try:
            return await self._go_on(self._release, node, what)
        finally:
            self._at_work.discard(node)

    async def _go_on(self, release: Release, node: str, what: str) -> Abandoned:
        seen = await self._pass(release, node, what, is_dry=True)
        if blocks := next((it for it in seen.found if it.fate == BLOCKS), None):
            raise OperatorRefused(what, f"{blocks.kind} {blocks.name} is in the way; {blocks.why}")
        try:
            await self._forget_facts(node)
        except OSError as error:
            raise OperatorRefused(what, f"its facts cannot be removed: {error}") from error
        done = await self._pass(release, node, what, is_dry=False)
        for each in done.found:
            if each.fate == RELEASED:
                log.warning("%s %s of edge node %s, which is abandoned, is released", each.kind, each.name, node)
        if any(it.fate != KEPT for it in done.found):
            return Abandoned(found=done.found)
        await self._ends.forget(node)
        return Abandoned(found=done.found, done=True, said=[f"edge node {node} is abandoned, and stays denied"])

    async def _pass(self, release: Release, node: str, what: str, *, is_dry: bool) -> Pass:
        try:
            return await release.run(node, partial(self._owner, node), await self._records(node), is_dry=is_dry)
        except NotReleased as error:
            remedy = f"; apply deploy/cloud/abandon, and {_consent(node, Pass())}" if error.is_forbidden else ""
            raise OperatorRefused(what, f"{error}{remedy}") from error

    def _owner(self, node: str, driver: str, key: str, value: str) -> str:
        return self._ends.segments.owner(key, value, (node,), driver)

    async def _records(self, node: str) -> Records:
        makers: dict[tuple[str, Handle], set[str]] = {}
        for (driver, thing, its), holding in (await self._ends.placement.books()).ledger.holdings:
            if holding.is_made:
                makers.setdefault((thing.kind, (driver, thing.id)), set()).add(its)
        # Storage of a driver with elections is reached by other nodes, whoever made the snapshot once.
        had = self._ends.placement.elections.had
        alone = {key for key, nodes in makers.items() if nodes == {node} and not had(key[1][0])}
        return Records(
            alone=frozenset(handle for kind, handle in alone if kind == SNAPSHOT),
            groups=frozenset(handle for kind, handle in alone if kind == GROUP),
            elsewhere=frozenset(
                handle for (kind, handle), nodes in makers.items() if kind == VOLUME and nodes - {node}
            ),
        )

    def _check(self, node: str, what: str) -> None:
        self._ends.check(node, what)
        if node in self._at_work:
            raise OperatorRefused(what, "another operator's order for it is under way")

    def _why_kept(self, node: str) -> str:
        return "its storage is being released now; try again in a minute" if node in self._at_work else ""


def _dry(node: str, seen: Pass) -> Abandoned:
    said = ["nothing is changed yet; --yes releases what goes"] if seen.found else ["it has nothing to release"]
    if any(it.fate != KEPT for it in seen.found):
        said.append(f"the cluster must allow it: apply deploy/cloud/abandon, and {_consent(node, seen)}")
    return Abandoned(found=seen.found, said=said)


def _consent(node: str, seen: Pass) -> str:
    """The command with which an administrator of the cluster allows it."""
    data = dict.fromkeys(sorted(seen.names), "") | {node: " ".join(sorted(seen.namespaces))}
    patch = [{"op": "replace", "path": "/spec/variables/0/expression", "value": json.dumps(data)}]
    return f"run kubectl patch validatingadmissionpolicy csi-bridge-hub-abandon --type=json -p '{json.dumps(patch)}'"
