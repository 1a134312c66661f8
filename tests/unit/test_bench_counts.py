"""Counts: what is made of strace's summary and of counted functions, and rows that a machine cannot count."""

from bench import counts
from bench.session_pair import Pair, function_calls

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000060           2        30           epoll_pwait
 30.00    0.000030           3        12         4 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.000090           2        42         4 total
"""


def test_strace_s_summary_is_read_with_and_without_errors() -> None:
    assert counts.read_summary(STRACE) == {"epoll_pwait": 30, "read": 12}


def test_a_process_without_system_calls_has_an_empty_summary() -> None:
    assert counts.read_summary("") == {}


def test_functions_in_python_and_in_c_are_two_rows() -> None:
    functions = {"hub": {"common/session.py:Session.open": 1.0, "<string>:__init__": 2.0, "in C: <len>": 4.0}}

    assert counts.rows({"calls": functions, "system calls": {"hub": {"read": 2.0, "write": 1.5}}}) == {
        "Python function calls": {"hub": 3.0},
        "C function calls": {"hub": 4.0},
        "system calls": {"hub": 3.5},
    }


def test_what_cannot_be_counted_here_says_why_and_the_rest_is_counted() -> None:
    found = counts._figures("bridge", {"calls": {"hub": {"f": 3.0}}, "system calls": "strace is not on the PATH"})

    assert [(figure.name, figure.measured) for figure in found] == [
        ("bridge: Python function calls a call, hub", "3.0"),
        ("bridge: C function calls a call, hub", "0.0"),
        ("bridge: system calls a call", "left out: strace is not on the PATH"),
    ]


def test_the_details_of_a_count_begin_with_the_most_frequent_function() -> None:
    first, _ = counts._figures("bridge", {"calls": {"hub": {"f": 1.0, "g": 3.0, "in C: <len>": 9.0}}})

    assert list(first.details.items()) == [("g", 3.0), ("f", 1.0)]


def test_a_session_pair_passes_calls_and_the_count_of_its_functions_is_exact() -> None:
    pair = Pair()
    pair.call()

    assert function_calls(pair, calls=20) == function_calls(pair, calls=20) > 10
