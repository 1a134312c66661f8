"""The forms of a bridge: its proxy driver is a process of its own, or runs inside the hub (`--serve`).

A test with one of these marks runs once in each form, through the fixture `in_hub`.
"""

import pytest


def _in_each_form(*marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    forms = [pytest.param(False, id="alone"), pytest.param(True, id="in-hub", marks=marks)]
    # Of the module, because some modules share one bridge.
    return pytest.mark.parametrize("in_hub", forms, scope="module")


in_each_form = _in_each_form()

slow_in_hub = _in_each_form(pytest.mark.slow)  # the second form is left to `make test-slow`
