"""What all tests share."""

import asyncio.constants
import logging

import pytest
from hypothesis import HealthCheck, settings

# In its debug mode asyncio warns of a callback that took 100 ms, which on a busy machine is any: no test means that.
logging.getLogger("asyncio").setLevel(logging.ERROR)

# And it keeps ten lines of the stack for every callback, a fifth of the suite's time. Whoever needs them sets it to 10.
vars(asyncio.constants)["DEBUG_STACK_DEPTH"] = 0

# Hypothesis allows an example 200 ms, which on a busy machine none is sure to get: no test asserts a time.
settings.register_profile("csi-bridge", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("csi-bridge")


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker, and the first, have all tests with a control plane: each more costs as much as ten tests.

    Any other file's tests stay together, for what they share.
    """
    items.sort(key=lambda item: not _needs_control_plane(item))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("control plane" if _needs_control_plane(item) else item.path.stem))


def _needs_control_plane(item: pytest.Item) -> bool:
    return "control_plane" in getattr(item, "fixturenames", ())
