"""The hub's state as a person reads it, and the settings of whoever asks for it."""

import pytest
from click.testing import CliRunner

from cli.main import cli
from cli.operators import status
from cli.operators.status import show
from tests.kit.pages import SINCE, election, node, proxy, refusal, state


def test_a_hub_that_nobody_has_met_is_one_line() -> None:
    assert list(show(state())) == ["csi-bridge/1.2.3: 0 of 0 nodes connected (limit 100), 0 proxy drivers"]


def test_a_standby_is_one_line_that_names_the_leader() -> None:
    told = state(leads=False, leader="hub-0_5f_a", since=SINCE, links=2)
    assert list(show(told)) == [
        "csi-bridge/1.2.3: standby with 2 peers connected: hub-0_5f_a leads since 2026-11-21T09:12:03Z"
    ]


def test_a_driver_that_a_connected_node_no_longer_reports_is_a_problem() -> None:
    *_, problem = show(state(node("n1", unreported=["a.example"])))
    assert problem.startswith("PROBLEM: edge node n1 is connected and no longer reports driver a.example; ")
    assert problem.endswith("; if the driver is gone for good, run csi-bridge forget n1 a.example")


def test_nodes_and_proxy_drivers_are_tables_and_conflicts_stand_below() -> None:
    away = node(
        "edge-2", connected=False, address="", drivers=[], calls=0, conflict="two machines use the node name edge-2"
    )
    assert list(show(state(node("n1"), away, drivers=[proxy("a.example")]))) == [
        "csi-bridge/1.2.3: 1 of 2 nodes connected (limit 100), 1 proxy driver",
        "",
        "NODE    STATE      SINCE                 DRIVERS",
        "n1      connected  2026-11-21T09:12:03Z  a.example, b.example",
        "edge-2  offline    2026-11-21T09:12:03Z  -",
        "",
        "PROXY DRIVER  SINCE                 ADDRESS",
        "a.example     2026-11-21T09:12:03Z  pid 7 uid 0",
        "",
        "CONFLICT: two machines use the node name edge-2",
    ]


def test_who_serves_a_shared_driver_is_a_table_and_why_nobody_does_stands_below() -> None:
    served = election("a.example", "n1", 3, "first election")
    away = election("b.example", "n1", 4, "first election", trouble="is away")
    nobody = election("c.example", "", 0, "", trouble="no edge node runs it")
    assert list(show(state(elections=[served, away, nobody])))[2:] == [
        "SHARED DRIVER  SERVED BY  SINCE                 EPOCH  WHY",
        "a.example      n1         2026-11-21T09:12:03Z  3      first election",
        "b.example      n1         2026-11-21T09:12:03Z  4      first election",
        "c.example      -          -                     0      -",
        "",
        "PROBLEM: no node but n1 can serve driver a.example: no other one runs it",
        "PROBLEM: edge node n1, which serves driver b.example, is away",
        "PROBLEM: nobody serves driver c.example: no edge node runs it",
    ]


def test_what_the_hub_lost_and_what_it_cannot_write_stand_below_and_say_what_follows() -> None:
    told = state(trouble="disk is full", lost=["2026-11-21T09:12:03Z state.db was gone"])
    assert list(show(told))[1:] == [
        "",
        "NOT WRITTEN: the hub has its newest records in memory only, and tries to write them: disk is full",
        "LOST: 2026-11-21T09:12:03Z state.db was gone; calls that name no node are refused until csi-bridge trust",
    ]


def test_who_was_refused_is_counted_and_the_command_that_names_them_is_told() -> None:
    told = state(refused=[refusal("n7")])
    assert list(show(told))[-1] == "REFUSED: 1 peer; csi-bridge nodes says which and why"


@pytest.mark.parametrize(("flags", "wanted"), [((), False), (("-o=json",), True)])
def test_the_state_is_json_by_output(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], wanted: bool) -> None:
    ran: list[bool] = []
    monkeypatch.setattr(status, "run", lambda _settings, *, as_json: ran.append(as_json))
    assert CliRunner().invoke(cli, ["status", *flags]).exit_code == 0
    assert ran == [wanted]
