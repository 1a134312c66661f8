"""A node's calls: how many are under way, and how the last one that failed did. For people; in memory alone.

A failure stays until a later call of the same driver succeeds there, if that call has the same method or changes
something: a question that the driver answers every minute does not say that a create would succeed.
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
"""Of a message; a vendor's may have megabytes."""


_QUESTIONS = ("Get", "List", "Validate", "Probe")
"""Words in the names of the methods that change nothing."""


class NodeCalls:
    """The calls of all nodes. What it keeps of each is one failure."""

    def __init__(self, *, knows: Callable[[str], bool]) -> None:
        """No calls yet.

        Args:
            knows: whether there is a node of a name: callers may name any.
        """
        self._knows = knows
        self._under_way: Counter[str] = Counter()
        self._failures: dict[str, FailedCall] = {}

    @contextmanager
    def counted(self, account: Account) -> Iterator[Callable[[str], None]]:
        """A call is under way inside the block, which tells the function where, and `account.status` how it ended."""
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
        """The node is gone for good."""
        self._failures.pop(node, None)

    def under_way(self, node: str) -> int:
        """How many calls are under way on a node."""
        return self._under_way[node]

    def last_error(self, node: str) -> FailedCall | None:
        """The last failed call of a node."""
        return self._failures.get(node)

    def _settle(self, account: Account) -> None:
        """A call succeeded: what failed before may count no more."""
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
