"""Go's flags, as manifests written for KubeEdge's csidriver have them."""

import pytest

from cli.goflags import from_go

NAMES = {"drivername", "endpoint", "kubeedge-endpoint", "nodeid", "v"}
SWITCHES = {"insecure"}

CASES = [
    (["-drivername=x"], ["--drivername=x"]),
    (["--drivername=x"], ["--drivername=x"]),
    (["-drivername", "x"], ["--drivername=x"]),
    (["--drivername", "x"], ["--drivername=x"]),
    (["--v=5"], ["--v=5"]),
    (["-v=5"], ["--v=5"]),
    (["-v", "5"], ["--v=5"]),
    (["--v", "5"], ["--v=5"]),
    (["-kubeedge-endpoint=unix:///k.sock", "-nodeid", "n1"], ["--kubeedge-endpoint=unix:///k.sock", "--nodeid=n1"]),
    (["-endpoint=unix:///a=b"], ["--endpoint=unix:///a=b"]),
    (["-drivername="], ["--drivername="]),
    (["-insecure"], ["--insecure"]),
    (["--insecure=true", "-insecure=T"], ["--insecure", "--insecure"]),
    (["-insecure=false", "--insecure=0"], []),
    ([], []),
]


@pytest.mark.parametrize(("argv", "written"), CASES)
def test_a_go_flag_is_written_for_click(argv: list[str], written: list[str]) -> None:
    assert from_go(argv, names=NAMES, switches=SWITCHES) == written


def test_what_follows_a_flag_is_its_value_even_if_it_looks_like_a_flag() -> None:
    assert from_go(["-nodeid", "-v", "-v", "5"], names=NAMES) == ["--nodeid=-v", "--v=5"]


def test_a_switch_takes_no_value_from_the_next_argument() -> None:
    assert from_go(["-insecure", "-v", "5"], names=NAMES, switches=SWITCHES) == ["--insecure", "--v=5"]


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["-stderrthreshold=2"], ["--no-such", "x"], ["---v=5"], ["-"]])
def test_what_is_not_known_stays_for_click_to_report(argv: list[str]) -> None:
    assert from_go(argv, names=NAMES, switches=SWITCHES) == argv


def test_a_flag_without_its_value_stays_for_click_to_report() -> None:
    assert from_go(["-drivername"], names=NAMES) == ["--drivername"]


def test_a_switch_that_is_neither_true_nor_false_stays_for_click_to_report() -> None:
    assert from_go(["--insecure=maybe"], names=NAMES, switches=SWITCHES) == ["--insecure=maybe"]


@pytest.mark.parametrize("argv", [["--", "-v=5"], ["command", "-v=5"]])
def test_flags_end_at_the_first_argument_that_is_none(argv: list[str]) -> None:
    assert from_go(["-v=4", *argv], names=NAMES) == ["--v=4", *argv]
