"""The calls of each node: their number, the oldest one, and the last one that failed. For operators; in memory alone.

Rules:

* A failure stays until a later call of the same driver succeeds on the node. That call must have the same method, or
  change something: a driver that answers GetCapacity every minute may still refuse a create.
* A call ages from its first try. A sidecar gives up after some seconds and tries again, while the driver may hang for
  hours. So a call that ends without an answer of its node counts as open until the node answers a later try, or until
  there is none for `_TRIED_AGAIN_S`.
"""

import time
from collections.abc import Callable

from cloud.nodes.edge_nodes import Nodes
from common.observe.accounting import Account
from common.pages.hub import FailedCall, OpenCall
from common.pages.json_form import time_of
from common.status import Origin, Status, code_name

_SHOWN_CHARS = 1_000  # a message is cut here; a vendor's may have megabytes
_TRIED_AGAIN_S = 600.0  # the sidecars of Kubernetes try again within five minutes (--retry-interval-max)
_MOST_UNANSWERED = 100  # of a node: of calls that nobody waits for, those with the newest tries are remembered
_SLOW_S, _MOST_SLOW = 10.0, 100  # the metric shows so many nodes with calls that old: sidecars wait for 10 s or longer

_QUESTIONS = ("Get", "List", "Validate", "Probe")  # methods with one of these words in their name change nothing


class NodeCalls:
    """Counts the calls of all nodes, and keeps one failure of each node. `slow` may be called by any thread."""

    def __init__(self, nodes: Nodes, *, now: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._now = now
        # By node, then by driver, method and request: when the first try began, and when the last one ended.
        self._unanswered: dict[str, dict[tuple[str, str, int], tuple[float, float]]] = {}
        self._under_way: dict[str, set[Account]] = {}
        self._failures: dict[str, FailedCall] = {}

    def goes_to(self, account: Account, node: str) -> None:
        # It is told once, or again with the same node.
        account.node = node
        self._under_way.setdefault(node, set()).add(account)

    def ended(self, account: Account, status: Status | None, *, request: int = 0, is_open: bool = False) -> None:
        """Count a call, which may have gone to no node, as under way no more.

        No status says nothing of its node, as when the caller leaves. Every try of a call has the same `request`. It is
        open if it was sent to the node, which has not answered.
        """
        calls = self._under_way.get(account.node)
        if calls is not None:
            calls.discard(account)
            if not calls:
                del self._under_way[account.node]
        if is_open:
            self._remember(account, request)
        elif self._unanswered and status is not None and status.origin != Origin.HUB:
            self._unanswered.get(account.node, {}).pop((account.driver, account.method, request), None)
        if status is None:
            return
        if status.code:
            self._note(account, status)
        elif account.node in self._failures:
            self._settle(account)

    def forget(self, node: str) -> None:
        self._failures.pop(node, None)
        self._unanswered.pop(node, None)

    def under_way(self, node: str) -> int:
        return len(self._under_way.get(node, ()))

    def last_error(self, node: str) -> FailedCall | None:
        return self._failures.get(node)

    def oldest(self, node: str) -> OpenCall | None:
        """The call that a node has owed an answer for the longest time; None if it owes none."""
        now = self._now()
        # Copies, because the thread of the metrics asks, too.
        found = [(it.began, it.driver, it.method) for it in list(self._under_way.get(node, ()))]
        for (driver, method, _), (began, tried) in list(self._unanswered.get(node, {}).items()):
            if now - tried < _TRIED_AGAIN_S:
                found.append((began, driver, method))
        if not found:
            return None
        began, driver, method = min(found)
        return OpenCall(driver=driver, method=method, age_s=int(now - began))

    def slow(self) -> list[tuple[str, str, str, int]]:
        """The oldest call of each node with an old one: node, driver, method and age in seconds, the oldest first."""
        nodes = {*list(self._under_way), *list(self._unanswered)}
        calls = [(node, call) for node in nodes if self._nodes.knows(node) and (call := self.oldest(node)) is not None]
        slow = [(node, it.driver, it.method, it.age_s) for node, it in calls if it.age_s >= _SLOW_S]
        return sorted(slow, key=lambda it: -it[3])[:_MOST_SLOW]

    def _remember(self, account: Account, request: int) -> None:
        if not self._nodes.knows(account.node):  # a caller may name any node
            return
        calls = self._unanswered.setdefault(account.node, {})
        now = self._now()
        key = (account.driver, account.method, request)
        began, tried = calls.pop(key, (account.began, now))  # the newest tries are last
        calls[key] = began if now - tried < _TRIED_AGAIN_S else account.began, now
        if len(calls) > _MOST_UNANSWERED:
            del calls[next(iter(calls))]

    def _settle(self, account: Account) -> None:
        failure = self._failures[account.node]
        is_as_good = failure.method == account.method or not _is_question(account.method)
        if failure.driver == account.driver and is_as_good:
            del self._failures[account.node]

    def _note(self, account: Account, status: Status) -> None:
        if not self._nodes.knows(account.node):
            return
        self._failures[account.node] = FailedCall(
            at=time_of(time.time()),
            driver=account.driver,
            method=account.method,
            code=code_name(status.code),
            by=status.origin,
            message=status.message[:_SHOWN_CHARS],
        )


def _is_question(method: str) -> bool:
    name = method.rpartition("/")[2]
    return any(word in name for word in _QUESTIONS)
