"""The calls of each node: how many are under way, and the last one that failed. For operators; in memory alone.

A failure stays until a later call of the same driver succeeds on the node. That call must have the same method, or
change something: a driver that answers GetCapacity every minute may still refuse a create.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.accounting import Account
from common.errors import CallError, status_of
from common.pages.hub import FailedCall
from common.pages.json_form import time_of
from common.status import Origin, Status, code_name

_SHOWN_CHARS = 1_000
"""A message is cut here; a vendor's may have megabytes."""


_QUESTIONS = ("Get", "List", "Validate", "Probe")
"""Methods with one of these words in their name change nothing."""


class NodeCalls:
    """Counts the calls of all nodes, and keeps one failure of each node."""

    def __init__(self, *, knows: Callable[[str], bool]) -> None:
        """No calls yet.

        Args:
            knows: tells whether a node of this name exists: a caller may name any node.
        """
        self._knows = knows
        self._under_way: Counter[str] = Counter()
        self._failures: dict[str, FailedCall] = {}

    @contextmanager
    def counted(self, account: Account) -> Iterator[Callable[[str], None]]:
        """Count a call during the block, which passes its node to the function and sets `account.status`."""
        at: list[str] = []

        def goes_to(node: str) -> None:
            account.node = node
            at.append(node)
            self._under_way[node] += 1

        try:
            yield goes_to
        except CallError as error:
            self._note(account, status_of(error, Origin.HUB))
            raise
        else:
            if account.status is not None and account.status.ok:
                self._settle(account)
            elif account.status is not None:
                self._note(account, account.status)
        finally:
            for node in at:
                self._under_way[node] -= 1
                if not self._under_way[node]:
                    del self._under_way[node]

    def forget(self, node: str) -> None:
        """Drop the failure of a node that is gone for good."""
        self._failures.pop(node, None)

    def under_way(self, node: str) -> int:
        """How many calls are under way on a node."""
        return self._under_way[node]

    def last_error(self, node: str) -> FailedCall | None:
        """The last failed call of a node; None if no failure counts."""
        return self._failures.get(node)

    def _settle(self, account: Account) -> None:
        """Drop the failure of the node if the success of this call settles it."""
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
