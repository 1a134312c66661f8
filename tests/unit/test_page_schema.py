"""docs/pages.schema.json is what the pages are."""

import json
from pathlib import Path

import pytest

from common.pages.hub import FailedCall, NodeStatus
from common.pages.json_form import decode, encode, time_of
from docs.pages_schema import PAGES, render
from tests.kit.pages import node, state

SCHEMA = Path(__file__).parents[2] / "docs" / "pages.schema.json"


def test_the_schema_is_of_this_version() -> None:
    assert SCHEMA.read_text() == render(), "run make reference"


def test_each_page_and_each_of_its_fields_is_described() -> None:
    definitions = json.loads(render())["$defs"]
    assert {page.kind.__name__ for page in PAGES} <= definitions.keys()
    for definition in definitions.values():
        assert definition["description"]
        assert all(field["description"] for field in definition["properties"].values())


def test_times_have_their_format_and_may_be_missing_where_they_are_not_known() -> None:
    definitions = json.loads(render())["$defs"]
    assert definitions["NodeStatus"]["properties"]["since"]["format"] == "date-time"
    known, missing = definitions["PodVolumeStatus"]["properties"]["since"]["anyOf"]
    assert (known["format"], missing["type"]) == ("date-time", "null")


def test_a_time_is_written_in_utc_without_its_fraction() -> None:
    error = FailedCall(at=time_of(1_795_252_323.9), driver="d", method="m", code="c", by="b", message="")
    assert json.loads(encode(error))["at"] == "2026-11-21T09:12:03Z"


def test_a_page_comes_back_as_it_was() -> None:
    told = state(node("n1"), drivers=[])
    assert decode(encode(told.nodes), list[NodeStatus]) == told.nodes
    assert decode(encode(told.hub), type(told.hub)) == told.hub


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"node": 7}, "node is no str"),
        ({"boot": True}, "boot is no int"),
        ({"connected": 1}, "connected is no bool"),
        ({"since": "yesterday"}, "Invalid isoformat string"),
        ({"drivers": [1]}, "an entry of drivers is no str"),
        ({"versions": {"d": 1}}, "versions.d is no str"),
        ({"last_error": {"at": "2026-11-21T09:12:03Z"}}, "last_error has no driver"),
        ({"last_error": []}, "last_error is no FailedCall"),
    ],
)
def test_a_page_with_a_wrong_field_is_refused_by_its_name(fields: dict[str, object], why: str) -> None:
    told = json.loads(encode(node("n1"))) | fields
    with pytest.raises(ValueError, match=why):
        decode(json.dumps(told).encode(), NodeStatus)


def test_a_page_without_a_field_is_refused_unless_the_field_has_a_default() -> None:
    told = json.loads(encode(node("n1")))
    del told["calls"]
    assert decode(json.dumps(told).encode(), NodeStatus).calls == 0
    del told["boot"]
    with pytest.raises(ValueError, match="the page has no boot"):
        decode(json.dumps(told).encode(), NodeStatus)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b"\xff"])
def test_what_is_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # in the words of whoever finds it
        decode(data, NodeStatus)


def test_a_reader_ignores_what_a_newer_peer_adds() -> None:
    told = node("n1")
    newer = json.loads(encode(told)) | {"mood": "fine"}
    assert decode(json.dumps(newer).encode(), type(told)) == told
