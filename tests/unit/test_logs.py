"""Logs: one line an event, whatever is in it, written by a thread, and few lines about one peer."""

import io
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from common.observe import line_limit, line_writer, logs
from common.observe.line_limit import BURST, LINES_A_MINUTE, LineLimit
from common.observe.line_writer import LineWriter
from common.observe.logs import configure
from common.status import Code, Origin, Status

LOGGER = logging.getLogger("csi_bridge.kiln")


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


class Written(io.StringIO):
    """An output that has every line once it is read."""

    handler: logs.LineHandler

    def getvalue(self) -> str:
        self.handler.flush()
        return super().getvalue()


class Terminal(Written):
    def isatty(self) -> bool:
        return True


def configured(log_format: str, level: str = "info", verbosity: int = 0, stream: Written | None = None) -> Written:
    """Configure the process, and return its output."""
    stream = Written() if stream is None else stream
    stream.handler = configure(log_format=log_format, level=level, verbosity=verbosity, stream=stream)
    return stream


@pytest.fixture
def lines() -> Callable[[], list[dict[str, Any]]]:
    stream = configured("json")
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def text() -> Written:
    return configured("text")


Lines = Callable[[], list[dict[str, Any]]]


def test_a_json_line_has_time_level_logger_and_message(lines: Lines) -> None:
    LOGGER.info("link %s", "up")
    (line,) = lines()
    assert line.pop("ts").endswith("Z")
    assert line == {"level": "info", "logger": "csi_bridge.kiln", "msg": "link up"}


def test_a_text_line_reads_like_a_sentence(text: Written) -> None:
    LOGGER.info("link up", extra={"fields": {"node": "n1"}})
    assert text.getvalue()[24:] == " INFO    kiln: link up  node=n1\n"


@pytest.mark.parametrize(("stream", "is_json"), [(Terminal(), False), (Written(), True)])
def test_auto_is_text_on_a_terminal_and_json_otherwise(stream: Written, is_json: bool) -> None:
    configured("auto", stream=stream)
    LOGGER.info("hello")
    assert stream.getvalue().startswith("{") == is_json


@pytest.mark.parametrize(
    ("level", "verbosity", "shown"), [("info", 0, 1), ("info", 3, 1), ("info", 4, 2), ("error", 0, 0)]
)
def test_level_and_verbosity_decide_what_is_written(level: str, verbosity: int, shown: int) -> None:
    stream = configured("text", level, verbosity)
    LOGGER.info("one")
    LOGGER.debug("two")
    assert len(stream.getvalue().splitlines()) == shown


def test_other_libraries_write_warnings_only(lines: Lines) -> None:
    logging.getLogger("websockets").info("noise")
    logging.getLogger("websockets").warning("something")
    assert [line["msg"] for line in lines()] == ["something"]


def test_configuring_again_replaces_the_stream(text: Written) -> None:
    second = configured("text")
    LOGGER.info("hello")
    assert text.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def finish(
    status: Status,
    *,
    node: str = "",
    call_id: str = "c1",
    duration_s: float = 0.0,
    sizes: tuple[int, int] = (0, 0),
) -> None:
    """Write the line of a finished call."""
    if logs.calls is not None:
        logs.calls.add((LOGGER.name, 1_800_000_000.5, duration_s, node, "", "/m", call_id, status, *sizes))


def test_a_finished_call_is_one_line_with_code_duration_and_sizes(lines: Lines) -> None:
    finish(Status(Code.OK), node="n1", duration_s=0.0123456, sizes=(310, 42))
    (line,) = lines()
    assert list(line.items()) == [
        ("ts", "2027-01-15T08:00:00.500Z"),
        ("level", "info"),
        ("logger", "csi_bridge.kiln"),
        ("msg", "call finished"),
        ("node", "n1"),
        ("method", "/m"),
        ("call_id", "c1"),
        ("code", "OK"),
        ("duration_ms", 12.346),
        ("request_bytes", 310),
        ("response_bytes", 42),
    ]


def test_a_finished_call_reads_like_any_other_line_in_text(text: Written) -> None:
    finish(Status(Code.OK), node="n1")
    assert text.getvalue() == (
        "2027-01-15T08:00:00.500Z INFO    kiln: call finished  "
        "node=n1 method=/m call_id=c1 code=OK duration_ms=0.0 request_bytes=0 response_bytes=0\n"
    )


def test_a_failed_call_says_who_said_what(lines: Lines) -> None:
    finish(Status(Code.UNAVAILABLE, "edge node n1 is offline", Origin.HUB))
    (line,) = lines()
    assert (line["code"], line["origin"], line["status"]) == ("UNAVAILABLE", "hub", "edge node n1 is offline")


def test_finished_calls_and_other_lines_keep_their_order(lines: Lines) -> None:
    for number in range(100):
        LOGGER.info("%d", 2 * number)
        finish(Status(Code.OK), call_id=str(2 * number + 1))
    assert [line.get("call_id", line["msg"]) for line in lines()] == [str(number) for number in range(200)]


def test_a_finished_call_costs_nothing_when_info_is_off() -> None:
    stream = configured("json", level="warning")
    finish(Status(Code.OK))
    assert stream.getvalue() == ""


def test_a_line_tells_what_its_arguments_were_when_it_was_logged(lines: Lines) -> None:
    batch = ["bread"]
    LOGGER.info("%s", batch)
    batch.append("cake")
    assert lines()[0]["msg"] == "['bread']"


def test_a_vendors_text_cannot_forge_a_second_line(text: Written) -> None:
    status = Status(Code.INTERNAL, 'x\n2026-11-21T00:00:00.000Z ERROR   hub: forged "\x1b[2J')
    finish(status)
    LOGGER.info("y\nforged\x1b[2J\u2028")
    first, second = text.getvalue().splitlines()
    assert "\\n2026" in first
    assert second.endswith("y\\nforged\\x1b[2J\\u2028")
    assert "\x1b" not in text.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_long_text_is_cut(log_format: str) -> None:
    stream = configured(log_format)
    finish(Status(Code.INTERNAL, "x" * 1_000_000))
    assert len(stream.getvalue()) < 3_000


def bake() -> None:
    raise RuntimeError("broken \x1b[2J kiln")


def log_an_exception() -> None:
    try:
        bake()
    except RuntimeError:
        LOGGER.exception("cannot bake")


def test_a_traceback_stays_in_its_json_line(lines: Lines) -> None:
    log_an_exception()
    (line,) = lines()
    assert line["exc"].endswith("RuntimeError: broken \x1b[2J kiln")


def test_a_traceback_follows_its_text_line_and_steers_no_terminal(text: Written) -> None:
    log_an_exception()
    first, *_, last = text.getvalue().splitlines()
    assert first.endswith("ERROR   kiln: cannot bake")
    assert last == "RuntimeError: broken \\x1b[2J kiln"


def closed(stream: io.StringIO) -> io.StringIO:
    stream.close()
    return stream


@pytest.mark.parametrize(
    "stream", [FullDisk(), closed(Terminal()), closed(io.StringIO()), None], ids=["full", "gone", "closed", "no stderr"]
)
def test_a_line_that_cannot_be_written_is_counted_and_lost(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    handler = configure(log_format="auto", level="info", stream=stream)
    LOGGER.info("lost")
    LOGGER.info("lost too")
    handler.flush()
    assert handler.writer.lost_lines == 2


def test_lines_of_one_peer_end_in_a_count_when_the_minute_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = 0.0, Written()
    stream.handler = handler = logs.LineHandler(stream, logs.TextLines())
    monkeypatch.setattr("common.observe.logs.time.monotonic", lambda: now)
    of_peer = logs.of_peer("10.0.0.7")
    for number in range(BURST + 4_312):
        handler.handle(LOGGER.makeRecord("", logging.INFO, "", 0, "no hello: %d %%", (number,), None, extra=of_peer))
    assert len(stream.getvalue().splitlines()) == BURST
    now = 61.0
    handler.handle(LOGGER.makeRecord("", logging.INFO, "", 0, "any line", (), None))
    messages = [line.partition(": ")[2] for line in stream.getvalue().splitlines()]
    assert messages[BURST:] == ["no hello: 4411 % … and 4,311 more", "any line"]


def test_no_character_of_a_json_line_steers_a_terminal() -> None:
    stream = configured("json")
    LOGGER.info("\x1b[2J\x9b2J\u202e")
    written = stream.getvalue()
    assert written.rstrip("\n").isprintable()
    assert json.loads(written)["msg"] == "\x1b[2J\x9b2J\u202e"


class Gate(io.StringIO):
    """An output that takes nothing until it is opened. It notes its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()
        self.blocks: list[str] = []

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.opened.wait(60)
        self.blocks.append(text)
        return len(text)


def writer(stream: io.StringIO) -> LineWriter[int]:
    return LineWriter(stream, text_of=lambda line: f"{100 // line}", lost_text=lambda count: f"{count} lost")


def test_lines_that_come_while_a_block_is_written_are_the_next_block() -> None:
    gate = Gate()
    lines = writer(gate)
    lines.add(1)
    gate.reached.wait(60)
    for line in (2, 4, 5):
        lines.add(line)
    gate.opened.set()
    lines.flush()
    assert gate.blocks == ["100\n", "50\n25\n20\n"]


def test_while_the_stream_takes_nothing_lines_wait_up_to_a_bound_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_writer, "MOST_LINES", 3)
    gate = Gate()
    lines = writer(gate)
    lines.add(1)
    gate.reached.wait(60)
    for _ in range(10):
        lines.add(2)
    assert lines.lost_lines == 7
    gate.opened.set()
    lines.flush()
    assert gate.blocks == ["100\n", "50\n50\n50\n7 lost\n"]


def test_a_line_that_cannot_be_formatted_costs_itself_only() -> None:
    stream = io.StringIO()
    lines = writer(stream)
    for line in (1, 0, 2):
        lines.add(line)
    lines.flush()
    assert stream.getvalue() == "100\n50\n1 lost\n" or stream.getvalue() == "100\n1 lost\n50\n"
    assert lines.lost_lines == 1


def test_a_writer_goes_on_after_a_flush_and_leaves_no_thread_behind_once_it_is_closed() -> None:
    stream = io.StringIO()
    lines = writer(stream)
    for _ in range(20):
        lines.add(1)
        lines.flush()
    lines.add(1)
    lines.close()
    assert stream.getvalue() == 21 * "100\n"
    assert not lines._thread.is_alive()


def test_no_line_is_forgotten_whoever_adds_and_flushes_at_the_same_time() -> None:
    stream = io.StringIO()
    lines = writer(stream)

    def work() -> None:
        for number in range(1_000):
            lines.add(1)
            if number % 50 == 0:
                lines.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.flush()
    assert stream.getvalue() == 4_000 * "100\n"


def admitted(limit: LineLimit[int], peer: str, count: int, *, now: float, kind: str = "k") -> int:
    """How many of so many lines the limit admits."""
    return sum(limit.admits(peer, kind, number, now) for number in range(count))


def test_a_peer_gets_a_burst_and_then_some_lines_a_minute() -> None:
    limit: LineLimit[int] = LineLimit()
    assert admitted(limit, "n1", 500, now=0.0) == BURST
    assert admitted(limit, "n1", 500, now=60.0) == LINES_A_MINUTE
    assert admitted(limit, "n1", 500, now=3_600.0) == BURST


def test_peers_and_kinds_have_allowances_of_their_own() -> None:
    limit: LineLimit[int] = LineLimit()
    admitted(limit, "n1", 500, now=0.0)
    assert admitted(limit, "n2", 1, now=0.0) == 1
    assert admitted(limit, "n1", 1, now=0.0, kind="other") == 1


def test_invented_peers_share_one_allowance_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_limit, "MOST_BUCKETS", 10)
    limit: LineLimit[int] = LineLimit()
    assert sum(limit.admits(f"p{number}", "k", number, 0.0) for number in range(1_000)) == 10 + BURST
    assert len(limit._buckets) == 11
    assert limit.take_held() == [(999, 1_000 - 10 - BURST - 1)]


def test_silent_peers_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_limit, "MOST_BUCKETS", 10)
    limit: LineLimit[int] = LineLimit()
    for number in range(10):
        limit.admits(f"p{number}", "k", number, 0.0)
    assert admitted(limit, "new", 500, now=600.0) == BURST
    assert len(limit._buckets) == 1


def test_a_stream_that_is_full_for_a_moment_loses_and_cuts_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that shares stderr may have made it non-blocking."""
    write: Callable[[int, memoryview], int] = os.write
    turns = iter([True, False])

    def full_in_the_middle(file: int, data: memoryview) -> int:
        takes = next(turns, None)
        if takes is False:
            raise BlockingIOError
        return write(file, data[:3] if takes else data)

    monkeypatch.setattr("common.observe.line_writer.os.write", full_in_the_middle)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "w") as stream:
        writer = LineWriter[str](stream, str, str)
        writer.add("first line")
        writer.flush()
        writer.add("second line")
        writer.close()
        stream.close()
        assert read.read() == b"first line\nsecond line\n"
    assert writer.lost_lines == 0
