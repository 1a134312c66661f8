"""What an agent says of a driver, as JSON and back, and what is no report."""

import json
from dataclasses import replace
from typing import Any

import pytest

from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import (
    GET_PLUGIN_INFO,
    NODE_GET_INFO,
    REPORTED_METHODS,
    Answer,
    DriverReport,
    decode_problems,
    decode_reports,
    encode_problems,
    encode_reports,
    is_problems,
    vendor_version,
)

REPORT = DriverReport(
    "d.example",
    "n1",
    {GET_PLUGIN_INFO: Answer(0, body=b"\n\td.example\xff"), NODE_GET_INFO: Answer(12, "no Node service: größe")},
)

GOLDEN = (
    b'[{"answers":{"/csi.v1.Identity/GetPluginInfo":{"body":"CglkLmV4YW1wbGX/","code":0,"message":""},'
    b'"/csi.v1.Node/NodeGetInfo":{"body":"","code":12,"message":"no Node service: gr\\u00f6\\u00dfe"}},'
    b'"driver":"d.example","node":"n1"}]'
)
"""The bytes on the wire and on disk: a change of them is a change for agents and hubs of different ages."""


def test_a_report_is_written_in_these_bytes() -> None:
    assert encode_reports([REPORT]) == GOLDEN


def test_a_report_is_read_as_it_was_written() -> None:
    assert decode_reports(GOLDEN) == [REPORT]


def test_a_driver_that_is_away_has_the_reason_at_the_end_of_its_report() -> None:
    away = replace(REPORT, away="no such socket")
    items = json.loads(encode_reports([away]))
    assert items == [{**json.loads(GOLDEN)[0], "away": "no such socket"}]
    assert decode_reports(encode_reports([away])) == [away]


def test_no_drivers_is_a_report_too() -> None:
    assert decode_reports(encode_reports([])) == []


def test_what_is_not_known_of_a_newer_peer_is_left_out() -> None:
    newer = json.loads(GOLDEN)
    newer[0]["health"] = "good"
    newer[0]["answers"][GET_PLUGIN_INFO]["took_s"] = 1
    assert decode_reports(json.dumps(newer).encode()) == [REPORT]


def broken(change: Any) -> bytes:
    items = json.loads(GOLDEN)
    change(items[0])
    return json.dumps(items).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"no JSON",
        b"null",
        b"[null]",
        b"[{}]",
        GOLDEN + b"x",
        b"[" * 100_000,
        broken(lambda item: item.pop("driver")),
        broken(lambda item: item.update(driver=7)),
        broken(lambda item: item.update(node=None)),
        broken(lambda item: item.update(answers=[])),
        broken(lambda item: item["answers"].update(x=None)),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(code="0")),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(code=True)),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(code=-1)),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(code=2**40)),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(message=None)),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(body="C")),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(body="ü")),
        broken(lambda item: item["answers"][GET_PLUGIN_INFO].update(body=7)),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_report_is_a_value_error_in_words(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a list of driver reports"):
        decode_reports(data)


def test_a_nodes_problems_are_told_as_a_few_short_printable_sentences_beside_the_reports() -> None:
    data = encode_problems(["the disk is full", *("ü" * 1_000 for _ in range(99))])
    assert (is_problems(data), is_problems(GOLDEN)) == (True, False)
    assert decode_problems(data) == ["the disk is full", *(["ü" * 500] * 19)]
    hostile = json.dumps({"problems": ["red \x1b[31m\u202e", *(["x" * 501] * 40)]}).encode()
    assert decode_problems(hostile) == ["red  [31m ", *(["x" * 500] * 19)]
    longest = ["\U0001f4be" * 500] * 20
    assert decode_problems(encode_problems(longest)) == longest


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"{}",
        b'{"problems":7}',
        b'{"problems":[7]}',
        b'{"problems":[["a"]]}',
        b'{"problems":["' + b"x" * 140_000 + b'"]}',
    ],
)
def test_what_is_no_list_of_problems_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a list of problems|140017 bytes of problems"):
        decode_problems(data)


def test_every_reported_method_changes_nothing_and_asks_nothing() -> None:
    for method in REPORTED_METHODS:
        assert "Get" in method


@pytest.mark.parametrize(
    ("answers", "version"),
    [
        ({GET_PLUGIN_INFO: Answer(0, body=GetPluginInfoResponse(vendor_version="v1.2").SerializeToString())}, "v1.2"),
        ({GET_PLUGIN_INFO: Answer(0, body=b"\xff")}, ""),
        ({}, ""),
    ],
)
def test_the_drivers_version_is_read_if_it_can_be(answers: Any, version: str) -> None:
    assert vendor_version(DriverReport("d.example", "n1", answers)) == version
