"""A line writer: lines in their order, in blocks, and none that anybody waits for."""

import io
import threading

import pytest

from common import line_writer
from common.line_writer import LineWriter


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


def test_a_flush_gives_a_stream_up_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "FLUSH_S", 0.0)
    gate = Gate()
    lines = writer(gate)
    lines.add(1)
    lines.flush()
    gate.opened.set()
    monkeypatch.undo()
    lines.add(2)
    lines.flush()
    assert "".join(gate.blocks) == "100\n50\n"


def test_a_line_that_cannot_be_formatted_costs_itself_only() -> None:
    stream = io.StringIO()
    lines = writer(stream)
    for line in (1, 0, 2):
        lines.add(line)
    lines.flush()
    assert stream.getvalue() == "100\n50\n1 lost\n" or stream.getvalue() == "100\n1 lost\n50\n"
    assert lines.lost_lines == 1


def test_a_writer_goes_on_after_a_flush_and_leaves_no_thread_behind() -> None:
    stream = io.StringIO()
    lines = writer(stream)
    for _ in range(200):
        lines.add(1)
        lines.flush()
        assert lines._thread is None
    assert stream.getvalue() == 200 * "100\n"


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


def test_a_process_at_its_very_end_which_can_start_no_thread_writes_the_line_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cannot(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", cannot)
    stream = io.StringIO()
    lines = writer(stream)
    lines.add(1)
    lines.add(2)
    assert stream.getvalue() == "100\n50\n"
