"""What a proxy driver answers of Identity and capabilities, before, during and after what it hears from the hub."""

import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cloud.proxy.identity_cache import CACHED_METHODS, IdentityCache
from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import ESSENTIAL_METHODS, GET_PLUGIN_INFO, NODE_GET_INFO, Answer, DriverReport, encode_reports
from common.errors import CallError

DRIVER = "d.example"
CAPABILITIES = "/csi.v1.Controller/ControllerGetCapabilities"


def report(*, version: str = "1", driver: str = DRIVER, node: str = "n1", node_id: bytes = b"\n\x01x") -> DriverReport:
    answers = {method: Answer(0, body=b"") for method in CACHED_METHODS}
    answers[GET_PLUGIN_INFO] = Answer(
        0, body=GetPluginInfoResponse(name=driver, vendor_version=version).SerializeToString()
    )
    answers[CAPABILITIES] = Answer(12, "no controller here")
    answers[NODE_GET_INFO] = Answer(0, body=node_id)
    return DriverReport(driver, node, answers)


def version_of(cache: IdentityCache) -> str:
    return GetPluginInfoResponse.FromString(cache.answer(GET_PLUGIN_INFO).body).vendor_version


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


@pytest.mark.parametrize("other", ["d_example", "d%2Fexample"])
def test_two_drivers_whose_names_are_alike_have_a_file_each(tmp_path: Path, other: str) -> None:
    for name in ("d/example", other):
        IdentityCache(tmp_path, name).update(report(driver=name))
    assert all(IdentityCache(tmp_path, name).known for name in ("d/example", other))


def test_the_same_change_heard_again_is_not_logged_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = IdentityCache(tmp_path, DRIVER)
    for version in ("1", "2", "2", "2"):
        cache.update(report(version=version))
    assert len(messages(caplog)) == 1


def test_a_change_of_the_node_alone_is_no_change_for_sidecars(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = IdentityCache(tmp_path, DRIVER)
    cache.update(report())
    cache.update(report(node="n2", node_id=b"\n\x01y"))
    assert messages(caplog) == []


def test_a_report_of_another_driver_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = IdentityCache(tmp_path, DRIVER)
    cache.update(report(driver="other.example"))
    assert not cache.known
    assert messages(caplog) == ["an unusable report of driver other.example from node n1 is ignored"]


def with_name(name: bytes) -> DriverReport:
    """A report whose plugin calls itself by another name; empty: its GetPluginInfo does not parse."""
    body = GetPluginInfoResponse(name=name.decode()).SerializeToString() if name else b"\xff"
    return replace(report(), answers={**report().answers, GET_PLUGIN_INFO: Answer(0, body=body)})


@pytest.mark.parametrize("name", [b"evil.example", b""])
def test_a_report_whose_plugin_has_another_name_is_ignored_from_the_hub_and_from_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: bytes
) -> None:
    path = tmp_path / "identity-d.example.json"
    path.write_bytes(encode_reports([with_name(name)]))
    cache = IdentityCache(tmp_path, DRIVER)
    assert not cache.known
    cache.update(with_name(name))
    assert not cache.known
    cache.update(report())
    cache.update(with_name(name))
    assert version_of(cache) == version_of(IdentityCache(tmp_path, DRIVER)) == "1"
    assert messages(caplog)[1:] == ["an unusable report of driver d.example from node n1 is ignored"] * 2


def without(whole: DriverReport, missing: str) -> DriverReport:
    return replace(whole, answers={key: value for key, value in whole.answers.items() if key != missing})


@pytest.mark.parametrize("missing", ESSENTIAL_METHODS)
def test_a_report_that_lacks_what_every_sidecar_asks_is_ignored(tmp_path: Path, missing: str) -> None:
    cache = IdentityCache(tmp_path, DRIVER)
    cache.update(without(report(), missing))
    assert not cache.known


@pytest.mark.parametrize("missing", sorted(CACHED_METHODS - set(ESSENTIAL_METHODS)))
def test_an_answer_that_comes_later_than_the_others_is_published_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    cache = IdentityCache(tmp_path, DRIVER)
    cache.update(without(report(), missing))
    assert cache.known
    with pytest.raises(
        CallError, match=f"the driver has not answered {missing}; look at the edge agent's log on node n1"
    ):
        cache.answer(missing)
    cache.update(report())
    assert cache.answer(missing) == report().answers[missing]
    assert messages(caplog) == []


def test_an_answer_that_a_later_report_lacks_stays_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = "/csi.v1.GroupController/GroupControllerGetCapabilities"
    cache = IdentityCache(tmp_path, DRIVER)
    cache.update(report())
    cache.update(without(report(), missing))
    assert messages(caplog) == []
    for known in (cache, IdentityCache(tmp_path, DRIVER)):
        assert known.answer(missing) == report().answers[missing]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b"{}",
        b"[{}]",
        b"[" * 100_000,
        encode_reports([report()])[:-5],
        encode_reports([report(driver="other.example")]),
        encode_reports([replace(report(), answers={})]),
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_corrupt_cache_is_ignored_and_named_until_the_hub_tells_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "identity-d.example.json"
    path.write_bytes(content)
    cache = IdentityCache(tmp_path, DRIVER)
    assert not cache.known
    (said,) = messages(caplog)
    assert said.startswith(f"{path} is ")
    assert "ignored" in said
    cache.update(report())
    assert IdentityCache(tmp_path, DRIVER).known


def test_a_write_that_fails_is_logged_and_the_answers_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = IdentityCache(tmp_path, DRIVER)
    (tmp_path / "identity-d.example.json.new").mkdir()
    cache.update(report())
    assert cache.known
    (said,) = messages(caplog, logging.ERROR)
    assert said.startswith(f"cannot write {tmp_path / 'identity-d.example.json'}; at the next start, sidecars wait")


def test_two_reports_at_once_are_written_one_after_the_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The thread that writes an old link's last report may still be at it when the new link's first one comes."""
    cache = IdentityCache(tmp_path, DRIVER)
    threads = [
        threading.Thread(target=cache.update, args=(report(node=f"n{number}", version="1" * 50_000),))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert messages(caplog) == []
    assert [path.name for path in tmp_path.iterdir()] == ["identity-d.example.json"]
    assert IdentityCache(tmp_path, DRIVER).known


def test_a_drivers_name_does_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    odd = "../../etc/d"
    IdentityCache(tmp_path / "state", odd).update(report(driver=odd))
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["identity-..%2F..%2Fetc%2Fd.json"]
