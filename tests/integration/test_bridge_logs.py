"""What the members of a test's bridge log is part of the test: a traceback fails it, whatever else it asserts."""

from pathlib import Path

import pytest

from tests.kit.bridge import Bridge, Member, UnforeseenError

TRACEBACK = '{"logger":"csi_bridge.hub","msg":"task x failed","exc":"ValueError: kiln"}'
OF_ASYNCIO = '{"logger":"asyncio","msg":"Task was destroyed but it is pending!"}'
NO_LINE = "Exception in thread kiln:"
HARMLESS = r'{"level":"error","logger":"csi_bridge.hub","msg":"the vendor said \"exc\":, \"logger\":\"asyncio\""}'


@pytest.fixture
def told(short_dir: Path, tmp_path: Path) -> Bridge:
    """A bridge whose members are told by the test what to log."""
    return Bridge(short_dir, tmp_path)


def log(bridge: Bridge, *lines: str) -> None:
    member = Member("kiln", ["printf", "%s\n", *lines], bridge._logs, ready=lambda: True)
    bridge._start(member, wait=False)
    assert member.process.wait_exit() == 0


@pytest.mark.parametrize("line", [TRACEBACK, OF_ASYNCIO, NO_LINE])
def test_a_line_that_nobody_foresaw_fails_the_test_with_its_text_and_the_members_name(told: Bridge, line: str) -> None:
    with pytest.raises(UnforeseenError, match=r"(?s)kiln.*(failed|destroyed|thread)"), told as bridge:
        log(bridge, HARMLESS, line)


def test_lines_of_any_level_without_a_traceback_are_the_tests_own_business(told: Bridge) -> None:
    with told as bridge:
        log(bridge, HARMLESS)


def test_a_test_declares_the_line_that_it_provokes_and_no_other(told: Bridge) -> None:
    told.foresee("task x failed")
    with pytest.raises(UnforeseenError, match="destroyed") as failure, told as bridge:
        log(bridge, TRACEBACK, OF_ASYNCIO)
    assert "task x" not in str(failure.value)


def test_a_failure_of_the_tests_own_is_not_hidden(told: Bridge) -> None:
    log(told, TRACEBACK)
    with pytest.raises(ZeroDivisionError), told:
        raise ZeroDivisionError
