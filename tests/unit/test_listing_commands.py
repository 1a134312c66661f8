"""The hub's nodes and volumes as a person reads them."""

import sys
from typing import Any

import pytest

from cli.operators import listings, node_list
from common.pages.hub import VolumeStatus
from tests.kit.pages import SINCE, node, refusal, state


def volume(pv: str, **changes: Any) -> VolumeStatus:
    usual: dict[str, Any] = {
        "volume": f"h-{pv}",
        "driver": "a.example",
        "node": "n1",
        "pv": pv,
        "claim": "default/data",
        "state": "mounted",
        "pods": [],
        "error": "",
    }
    return VolumeStatus(**(usual | changes))


def test_nodes_are_a_table_and_what_went_wrong_stands_below() -> None:
    error = {
        "at": SINCE,
        "driver": "a.example",
        "method": "/csi.v1.Controller/CreateVolume",
        "code": "INTERNAL",
        "by": "vendor",
        "message": "fire\x1b",
    }
    away = node(
        "edge-2", connected=False, address="", drivers=[], calls=0, conflict="two machines use the node name edge-2"
    )
    waits = {"driver": "a.example", "method": "/csi.v1.Controller/CreateVolume", "age_s": 190}
    told = state(node("n1", last_error=error, calls=3, oldest_call=waits), away, refused=[refusal("edge-2")])
    assert list(node_list.show(told)) == [
        "NODE    STATE      SINCE                 CALLS                          ADDRESS        DRIVERS",
        "n1      connected  2026-11-21T09:12:03Z  3 (CreateVolume a.example 3m)  10.0.0.7:5123  a.example, b.example",
        "edge-2  offline    2026-11-21T09:12:03Z  0                              -              -",
        "",
        "CONFLICT: two machines use the node name edge-2",
        "LAST ERROR: n1: 2026-11-21T09:12:03Z CreateVolume of a.example ended with INTERNAL (from the vendor): fire?",
        "REFUSED: 2026-11-21T09:12:03Z edge edge-2 from 10.0.0.9:7: it is another one",
    ]


LONG = node(
    "edge-node-with-a-very-long-name-in-the-plant-of-graz",
    address="[2001:db8:1234:5678:9abc:def0:1234:5678]:51234",
    drivers=["storage.vendor-with-a-long-name.example.com", "another.example"],
)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_on_a_terminal_a_table_fits_and_nothing_of_it_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = list(node_list.show(state(LONG)))
    assert max(map(len, lines)) <= width
    for column in (0, 1):
        assert lines[column].startswith(("NODE", "edge-node-"))
    left = "".join(line[: lines[0].index("STATE")].strip() for line in lines[1:])
    assert left == LONG.node
    assert "2026-11-21T09:12:03Z" in lines[1]


def test_in_a_pipe_each_row_is_one_line() -> None:
    assert len(list(node_list.show(state(LONG)))) == 2


def test_volumes_are_a_table_and_errors_stand_below() -> None:
    free = volume("pv-2", node="", claim="", state="available")
    failing = volume("pv-3", state="error", error="no such disk")
    assert list(listings.show_volumes([volume("pv-1"), free, failing], has_source=True)) == [
        "VOLUME  DRIVER     NODE  PV    CLAIM         STATE",
        "h-pv-1  a.example  n1    pv-1  default/data  mounted",
        "h-pv-2  a.example  -     pv-2  -             available",
        "h-pv-3  a.example  n1    pv-3  default/data  error",
        "",
        "pv-3 on n1: no such disk",
    ]


def test_a_hub_without_volumes_says_whether_it_could_know_any() -> None:
    assert list(listings.show_volumes([], has_source=True)) == ["the hub knows no volume of a CSI driver"]
    (line,) = listings.show_volumes([], has_source=False)
    assert "without --kubeconfig and without --manifests" in line
