"""A turn: connections write once, at its end."""

import asyncio

import pytest

from common.turn import Turn, turn_of


class Connection:
    def __init__(self, turn: Turn, log: list[str], name: str) -> None:
        self.turn = turn
        self.log = log
        self.name = name
        self.wakes: list[Connection] = []

    def flush(self) -> None:
        if self.turn.is_on:
            self.turn.add(self)
        else:
            self.log.append(f"{self.name} writes")
            for other in self.wakes:
                other.flush()


def test_connections_that_were_touched_in_a_turn_write_once_at_its_end() -> None:
    turn, log = Turn(), list[str]()
    one, two = Connection(turn, log, "one"), Connection(turn, log, "two")

    def receive(data: bytes) -> None:
        for _ in range(3):
            one.flush()
            two.flush()
        log.append(f"{data!r} is read")

    turn.run(receive, b"x")
    assert log[0] == "b'x' is read"
    assert sorted(log[1:]) == ["one writes", "two writes"]
    one.flush()
    assert log[-1] == "one writes"


def test_a_turn_within_a_turn_belongs_to_it() -> None:
    turn, log = Turn(), list[str]()
    one = Connection(turn, log, "one")

    def inner(data: bytes) -> None:
        one.flush()

    def outer(data: bytes) -> None:
        turn.run(inner, data)
        log.append("the outer one is read")

    turn.run(outer, b"x")
    assert log == ["the outer one is read", "one writes"]


def test_a_connection_that_another_ones_write_wakes_writes_at_once() -> None:
    turn, log = Turn(), list[str]()
    one, two = Connection(turn, log, "one"), Connection(turn, log, "two")
    one.wakes.append(two)
    turn.run(lambda _: one.flush(), b"x")
    assert log == ["one writes", "two writes"]


def test_a_turn_that_fails_still_lets_the_connections_write() -> None:
    turn, log = Turn(), list[str]()
    one = Connection(turn, log, "one")

    def receive(data: bytes) -> None:
        one.flush()
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        turn.run(receive, b"x")
    assert log == ["one writes"]
    assert not turn.is_on


async def test_all_connections_of_a_loop_share_its_turns() -> None:
    loop = asyncio.get_running_loop()
    assert turn_of(loop) is turn_of(loop)
