"""The calls of each node: how many are under way, and the last one that failed. For operators; in memory alone.

A failure stays until a later call of the same driver succeeds on the node. That call must have the same method, or
change something: a driver that answers GetCapacity every minute may still refuse a create.
"""

import time
from collections.abc import Callable

from common.accounting import Account
from common.pages.hub import FailedCall
from common.pages.json_form import time_of
from common.status import Status, code_name

_SHOWN_CHARS = 1_000
"""A message is cut here; a vendor's may have megabytes."""


_QUESTIONS = ("Get", "List", "Validate", "Probe")
"""Methods with one of these words in their name change nothing."""


class NodeCalls:
    """Counts the calls of all nodes, and keeps one failure of each node."""

    def __init__(self, *, knows: Callable[[str], bool]) -> None:
        """`knows` tells whether a node of this name exists: a caller may name any node."""
        self._knows = knows
        self._under_way: dict[str, set[Account]] = {}
        self._failures: dict[str, FailedCall] = {}

    def goes_to(self, account: Account, node: str) -> None:
        """Count a call as under way on this node, and on no other."""
        self._leaves(account)
        account.node = node
        calls = self._under_way.get(node)
        if calls is None:
            calls = self._under_way[node] = set()
        calls.add(account)

    def ended(self, account: Account, status: Status | None) -> None:
        """Count a call as under way no more.

        Args:
            account: the call, which may have gone to no node.
            status: how it ended; None if that says nothing of its node, as when the caller leaves.
        """
        self._leaves(account)
        if status is None:
            return
        if status.ok:
            self._settle(account)
        else:
            self._note(account, status)

    def forget(self, node: str) -> None:
        """Drop the failure of a node that is gone for good."""
        self._failures.pop(node, None)

    def under_way(self, node: str) -> int:
        """How many calls are under way on a node."""
        return len(self._under_way.get(node, ()))

    def last_error(self, node: str) -> FailedCall | None:
        """The last failed call of a node; None if no failure counts."""
        return self._failures.get(node)

    def _leaves(self, account: Account) -> None:
        calls = self._under_way.get(account.node)
        if calls is None:
            return
        calls.discard(account)
        if not calls:
            del self._under_way[account.node]

    def _settle(self, account: Account) -> None:
        failure = self._failures.get(account.node)
        if failure is None or failure.driver != account.driver:
            return
        if failure.method == account.method or not _is_question(account.method):
            del self._failures[account.node]

    def _note(self, account: Account, status: Status) -> None:
        if not self._knows(account.node):
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
