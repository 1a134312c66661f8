"""A moment: a time that an operator writes, absolute or as a duration before now."""

import time
from contextlib import suppress
from datetime import UTC, datetime

from common.parsers import duration


def moment(text: str) -> float:
    """Seconds since the epoch, from a time such as `2026-11-21T09:12:03Z`, or from a duration before now.

    Raises:
        ValueError: it is neither.
    """
    with suppress(ValueError):
        return time.time() - duration(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a duration like 24h, or a time like 2026-11-21T09:12:03Z") from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
