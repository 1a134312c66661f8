"""The error table: which code each situation gets, and what its text tells a person to do."""

import inspect

import pytest

from common import errors
from common.errors import CallError, status_of, timestamp
from common.status import Code, Origin, Status

SINCE_S = 1_795_252_323.9  # 2026-11-21T09:12:03Z and most of a second

TEXTS: dict[CallError, str] = {
    errors.node_offline("n7", SINCE_S): (
        "edge node n7 is offline since 2026-11-21T09:12:03Z; look at the log of its csi-bridge edge agent and at "
        "the network between it and the hub"
    ),
    errors.driver_missing("dir.csi", "n7"): (
        "edge node n7 is connected but has no driver dir.csi; check that the driver runs there and that the "
        "agent's --driver names its socket, and look at the agent's log"
    ),
    errors.knowledge_lost("dir.csi", "2026-11-21T09:12:03Z state.db was gone"): (
        "the call for driver dir.csi names no edge node, and the hub has lost records (2026-11-21T09:12:03Z state.db "
        "was gone); set --nodeid on the proxy driver, or, once csi-bridge status shows every node and its drivers "
        "again, run csi-bridge trust on the hub's host"
    ),
    errors.no_place("dir.csi", "volume v-1", "nobody tells"): (
        "the hub does not know which edge node of driver dir.csi has volume v-1: nobody tells"
    ),
    errors.name_elsewhere("dir.csi", "CreateVolume pvc-1", "n1", "n2"): (
        "edge node n1 may have carried out CreateVolume pvc-1 of driver dir.csi already, and this call is for n2; "
        "send the call to n1 (with --nodeid or --placement of the proxy driver, or csi-bridge call --node n1), or, "
        "if that node will not come back, run csi-bridge forget n1 on the hub's host"
    ),
    errors.answer_refused("dir.csi", "CreateVolume pvc-1", "n1", "more than one message"): (
        "edge node n1 answered CreateVolume pvc-1 of driver dir.csi with more than one message; "
        "the answer is not passed on; look at the driver on n1"
    ),
    errors.not_listed(
        "dir.csi", "/csi.v1.Controller/ListVolumes", {"n2": "it is busy", "n1": "it is away", "n3": ""}
    ): (
        "ListVolumes of driver dir.csi would lack the entries of edge node n1: it is away (and those of n2, n3); "
        "csi-bridge call --node NODE asks one node, and csi-bridge forget NODE is for a node that is gone for good"
    ),
    errors.token_unknown("/csi.v1.Controller/ListVolumes"): (
        "this starting_token of ListVolumes is for no list of the hub; begin again without one"
    ),
    errors.VolumeHeld("d.example", "v-1", "n2", "it is offline since then"): (
        "volume v-1 of driver d.example is not detached from node n2: it is offline since then"
    ),
    errors.LinkLost("edge node n7"): (
        "the link to edge node n7 was lost with the call under way; an operation that the call started may still "
        "be running, and a retry joins it"
    ),
    errors.shutting_down(
        "hub"
    ): "the hub is shutting down and takes no new calls; a retry reaches the process that replaces it",
    errors.CallTimeout("edge node n7"): (
        "edge node n7 did not answer before the caller's deadline; an operation that the call started may still be "
        "running, and a retry joins it"
    ),
    errors.MessageTooLarge(5_000_000, 4_194_304, "a CSI message"): (
        "a CSI message of 5000000 bytes is larger than the limit of 4194304 bytes; raise --max-message on hub, "
        "driver and agent"
    ),
    errors.Overloaded("hub", 1_024, "--max-calls"): (
        "the hub has 1024 calls under way, which is its limit (--max-calls); retry later or raise it"
    ),
    errors.VendorBroken("dir.csi", "n7", "the driver reset the stream"): (
        "driver dir.csi on edge node n7: the driver reset the stream; look at the driver's log there"
    ),
    errors.order_refused("edge node n7 is not forgotten", "it is connected; stop its agent first"): (
        "edge node n7 is not forgotten: it is connected; stop its agent first"
    ),
    errors.not_carried("/csi.v1.Node/NodeStageVolume", "a kubelet asks the driver itself"): (
        "/csi.v1.Node/NodeStageVolume is not served here: a kubelet asks the driver itself"
    ),
}
"""An error of each kind, with its text, which users see in events."""


def test_every_call_error_of_the_file_has_its_text_here() -> None:
    classes = {it for _, it in inspect.getmembers(errors, inspect.isclass) if issubclass(it, CallError)}
    made_by = [
        it for _, it in inspect.getmembers(errors, inspect.isfunction) if it.__annotations__["return"] is CallError
    ]
    kinds = [type(error) for error in TEXTS]
    assert set(kinds) == classes
    assert kinds.count(CallError) == len(made_by)


@pytest.mark.parametrize("error", TEXTS, ids=lambda error: str(error)[:40])
def test_a_call_error_becomes_a_status_with_this_text(error: CallError) -> None:
    for origin in Origin:
        assert status_of(error, origin) == Status(error.code, TEXTS[error], origin)


def test_only_a_call_that_is_not_served_has_a_final_code() -> None:
    """docs/csi-contract.md#a-final-code-makes-a-sidecar-forget: it was sent to no driver."""
    others = {str(error).split()[0]: error.code for error in TEXTS if error.code is not Code.UNAVAILABLE}
    assert others == {
        "/csi.v1.Node/NodeStageVolume": Code.UNIMPLEMENTED,  # `not_carried`
        "edge": Code.DEADLINE_EXCEEDED,  # `CallTimeout`
        "this": Code.ABORTED,  # `token_unknown`
    }


def test_a_timeout_without_a_name_speaks_of_the_peer() -> None:
    assert str(errors.CallTimeout()).startswith("the peer did not answer before the caller's deadline")


@pytest.mark.parametrize(
    ("origin", "hop"),
    [(Origin.VENDOR, "driver"), (Origin.EDGE, "edge agent"), (Origin.HUB, "hub"), (Origin.PROXY, "proxy driver")],
)
@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("s3cr3t"),
        errors.TunnelClosed(sent=True, why="s3cr3t"),
        errors.RemoteProtocolError("s3cr3t"),
        errors.SettingsError("KEY", "s3cr3t", "no"),
        KeyboardInterrupt("s3cr3t"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_surprise_is_unavailable_and_names_the_hop_and_no_detail(
    error: BaseException | None, origin: Origin, hop: str
) -> None:
    assert status_of(error, origin) == Status(
        Code.UNAVAILABLE, f"an internal error in the {hop}; its log has the details", origin
    )


@pytest.mark.parametrize(
    ("value", "text"), [("7x", "KEEPALIVE=7x: no time"), ("", "KEEPALIVE: no time"), (None, "KEEPALIVE: no time")]
)
def test_a_settings_error_names_the_variable_and_its_value(value: object, text: str) -> None:
    assert str(errors.SettingsError("KEEPALIVE", value, "no time")) == text


def test_a_timestamp_is_absolute_utc_to_the_second() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00Z"
    assert timestamp(SINCE_S) == "2026-11-21T09:12:03Z"
