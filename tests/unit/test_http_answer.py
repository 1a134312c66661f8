"""Answers of an API server, from bytes that come in any pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.kube.http_answer import MOST_BYTES, AnswerReader, HttpAnswer

WITH_LENGTH = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
IN_CHUNKS = b'HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n3;of=2\r\n 1}\r\n0\r\n\r\n'


@pytest.mark.parametrize(("data", "status"), [(WITH_LENGTH, 200), (IN_CHUNKS, 409)])
@given(cuts=st.lists(st.integers(min_value=0, max_value=120), max_size=5))
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(data: bytes, status: int, cuts: list[int]) -> None:
    reader = AnswerReader()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    answers = [reader.feed(data[begin:end]) for begin, end in itertools.pairwise(places)]
    assert answers[:-1] == [None] * (len(answers) - 1)
    assert answers[-1] is not None
    assert (answers[-1].status, answers[-1].body) == (status, b'{"a": 1}')


def test_an_answer_that_says_that_the_server_closes_keeps_no_connection() -> None:
    assert AnswerReader().feed(WITH_LENGTH) == HttpAnswer(200, b'{"a": 1}', keeps_connection=True)
    closing = WITH_LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n")
    assert AnswerReader().feed(closing) == HttpAnswer(200, b'{"a": 1}', keeps_connection=False)


def test_an_interim_answer_comes_before_the_real_one() -> None:
    answer = AnswerReader().feed(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WITH_LENGTH)
    assert (answer.status, answer.body) == (200, b'{"a": 1}')


def test_an_answer_without_content_ends_with_its_head() -> None:
    assert AnswerReader().feed(b"HTTP/1.1 204 No Content\r\n\r\n") == HttpAnswer(204, b"", keeps_connection=True)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        WITH_LENGTH + b"H",
        WITH_LENGTH + b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_bytes_that_are_no_answer_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|server sent bytes"):
        AnswerReader().feed(data)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip", b"HTTP/1.0 200 OK"]
)
def test_an_answer_that_only_the_end_of_its_connection_ends_is_never_whole(head: bytes) -> None:
    assert AnswerReader().feed(head + b'\r\n\r\n{"a": 1}') is None


def test_an_answer_without_an_end_is_an_error() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
    with pytest.raises(ValueError, match="more than 8 MiB"):
        reader.feed(b"x" * MOST_BYTES)
