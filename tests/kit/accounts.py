"""Accounts of calls, for tests that look at how a hop's calls ended."""

import pytest

from common.observe.accounting import Account
from common.status import Status


def note_ends(monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    """Add the code of each call that ends to `codes`."""
    end = Account.end

    def noted(account: Account, status: Status) -> None:
        if not account.is_over:
            codes.append(status.code)
        end(account, status)

    monkeypatch.setattr(Account, "end", noted)
