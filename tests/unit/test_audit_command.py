"""The command `audit`: what it prints, and what it deletes."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import cli
from cli.operators import audit
from cli.operators.operator_options import OperatorSettings
from cli.operators.table import age
from common.csi import csi_pb2 as csi
from common.errors import BridgeError
from common.net.endpoint import Endpoint
from common.operator_orders import Audited, Leak, Unasked
from common.status import Code, Status

NOW = datetime(2026, 11, 21, 9, 12, 3, tzinfo=UTC)


def leak(kind: str = "orphan", id_: str = "vol-1", **more: Any) -> Leak:
    fields: dict[str, Any] = {
        "driver": "d.csi",
        "thing": "volume",
        "nodes": ["n1"],
        "since": NOW - timedelta(hours=5),
        "size_bytes": 1 << 30,
        "about": "nothing refers to it",
        "settle": f"csi-bridge audit --driver d.csi --delete {id_}",
    }
    return Leak(leak=kind, id=id_, **(fields | more))


def audited(*leaks: Leak, **more: Any) -> Audited:
    counts = {kind: sum(it.leak == kind for it in leaks) for kind in ("orphan", "ghost", "stray", "doubt")}
    found: dict[str, Any] = {"began_at": NOW, "ended_at": NOW, "unasked": [], "notes": [], **more}
    return Audited(leaks=list(leaks), counts=counts, **found)


class Hub:
    """A hub."""

    def __init__(self) -> None:
        self.audits: list[Audited] = []  # the answers to the next orders
        self.calls: list[tuple[str, str, str, str]] = []  # method, driver, node and id of each call
        self.status = Status(Code.OK)  # how a call ends

    async def give_order(self, _settings: OperatorSettings, order: Any, _answer: object) -> Audited:
        assert 0 < order.within_s < 60
        return self.audits.pop(0)

    async def call(self, _settings: OperatorSettings, path: str, request: bytes, *, driver: str, node: str) -> Status:
        name = path.rpartition("/")[2]
        read: Any = csi.DeleteVolumeRequest if name == "DeleteVolume" else csi.DeleteSnapshotRequest
        message = read.FromString(request)
        self.calls.append((name, driver, node, message.volume_id if name == "DeleteVolume" else message.snapshot_id))
        return self.status


@pytest.fixture
def settings(tmp_path: Path) -> OperatorSettings:
    path = tmp_path / "hub.sock"
    return OperatorSettings(hub=Endpoint(f"unix://{path}", path=path), timeout_s=60.0, max_message_bytes=4 << 20)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(audit, "give_order", hub.give_order)
    monkeypatch.setattr(audit.call, "call", hub.call)
    return hub


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A terminal, and the answers that a person gives there."""
    given: list[bool] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda _text: given.pop(0))
    return given


def test_people_see_the_leaks_the_commands_and_what_is_not_known() -> None:
    unasked = [Unasked(node="n2", driver="d.csi", things="volume", why="edge node n2 is offline since yesterday")]
    doubt = leak("doubt", "pvc-9", thing="CreateVolume", since=None, size_bytes=None, about="perhaps")
    state = audited(leak(), doubt, unasked=unasked, notes=["mounts are not known of n2"])
    assert list(audit.show(state)) == [
        "leak audit of 2026-11-21T09:12:03Z: 1 orphan, 0 ghosts, 0 strays, 1 doubt",
        "",
        "LEAK    DRIVER  WHAT          ID     NODE  AGE      SIZE  ABOUT",
        "orphan  d.csi   volume        vol-1  n1    5h       1Gi   nothing refers to it",
        "doubt   d.csi   CreateVolume  pvc-9  n1    unknown  -     perhaps",
        "",
        "To settle them:",
        "  csi-bridge audit --driver d.csi --delete vol-1",
        "  csi-bridge audit --driver d.csi --delete pvc-9",
        "",
        "Not asked:",
        "NODE  DRIVER  LIST     WHY",
        "n2    d.csi   volumes  edge node n2 is offline since yesterday",
        "",
        "mounts are not known of n2",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (200_000, "2d")])
def test_an_age_is_short(seconds: int, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("answer", "then", "calls"),
    [
        (True, audited(leak()), [("DeleteVolume", "d.csi", "n1", "vol-1")]),
        (True, audited(referring=["PersistentVolume pv-1 names volume vol-1 of driver d.csi"]), []),
        (False, audited(leak()), []),
    ],
    ids=["a yes", "a yes after it got its object", "a no"],
)
def test_an_orphan_is_deleted_after_a_yes_if_it_is_still_one(
    hub: Hub, settings: OperatorSettings, answers: list[bool], answer: bool, then: Audited, calls: list[object]
) -> None:
    hub.audits = [audited(leak()), then]
    answers.append(answer)
    with nullcontext() if calls else pytest.raises(BridgeError, match="vol-1 is not deleted"):
        audit.delete(settings, "vol-1", driver="", sure=False)
    assert hub.calls == calls


def test_a_snapshot_is_deleted_as_one(hub: Hub, settings: OperatorSettings) -> None:
    hub.audits = [audited(leak(thing="snapshot", nodes=["n2", "n3"]))]
    audit.delete(settings, "vol-1", driver="", sure=True)
    assert hub.calls == [("DeleteSnapshot", "d.csi", "n2", "vol-1")]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (audited(leak(), leak(driver="e.csi")), "several have this id"),
        (audited(notes=["volumes are not compared with Kubernetes: no answer"]), "volumes are not compared"),
    ],
    ids=["several", "not judged"],
)
def test_what_is_no_single_orphan_is_not_deleted(
    hub: Hub, settings: OperatorSettings, state: Audited, why: str
) -> None:
    hub.audits = [state]
    with pytest.raises(BridgeError, match=why):
        audit.delete(settings, "vol-1", driver="", sure=True)
    assert hub.calls == []


def test_a_vendors_refusal_is_told(hub: Hub, settings: OperatorSettings) -> None:
    hub.audits = [audited(leak())]
    hub.status = Status(Code.INVALID_ARGUMENT, "secrets are missing")
    with pytest.raises(BridgeError, match="secrets are missing"):
        audit.delete(settings, "vol-1", driver="", sure=True)


def test_a_hub_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise BridgeError("no audit: no node has reported driver d.csi")

    monkeypatch.setattr(audit, "give_order", refuse)
    told = CliRunner().invoke(cli, ["audit", "--driver=d.csi"])
    assert (told.exit_code, told.stderr) == (1, "csi-bridge: no audit: no node has reported driver d.csi\n")
