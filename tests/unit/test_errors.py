"""The error table: what each situation is called, which code it gets, and what its text tells a person to do."""

import inspect
from collections.abc import Callable

import pytest

from common import errors
from common.errors import (
    CODES,
    AnswerRefused,
    BridgeError,
    CallError,
    CallTimeout,
    CapabilityMissing,
    DialError,
    Draining,
    DriverAmbiguous,
    DriverMissing,
    EpochOver,
    FieldMissing,
    ForeignDriver,
    ForeignId,
    HandshakeRefused,
    HubUnreachable,
    IdConflict,
    KnowledgeLost,
    LeaseOver,
    LinkError,
    LinkLost,
    LocalProtocolError,
    MessageTooLarge,
    NameElsewhere,
    NobodyServes,
    NodeOffline,
    NodeUnknown,
    NoNodeFits,
    NoPlace,
    NoRoute,
    NotCarried,
    NothingKnown,
    NotListed,
    NotWhole,
    OpenElsewhere,
    OperationBusy,
    OperationConflict,
    OperationLimit,
    OperatorRefused,
    Overloaded,
    PlacementNotKept,
    ProtocolError,
    RemoteProtocolError,
    ReportRefused,
    SettingsError,
    SeveralNodes,
    SourceElsewhere,
    TokenUnknown,
    TooManyOpen,
    TunnelClosed,
    VendorBroken,
    VolumeHeld,
    status_of,
    timestamp,
)
from common.status import Code, Origin, Status

SINCE_S = 1_795_252_323.9
"""2026-11-21T09:12:03Z and most of a second."""

TABLE: dict[type[CallError], tuple[Callable[[], CallError], Code, str]] = {
    NodeOffline: (
        lambda: NodeOffline("n7", SINCE_S),
        Code.UNAVAILABLE,
        (
            "edge node n7 is offline since 2026-11-21T09:12:03Z; look at the log of its csi-bridge edge agent and at "
            "the network between it and the hub"
        ),
    ),
    NodeUnknown: (
        lambda: NodeUnknown("n7"),
        Code.UNAVAILABLE,
        (
            "edge node n7 has never connected to this hub; compare --nodeid of the proxy driver with --node of the "
            "edge agent, and look at the agent's log"
        ),
    ),
    DriverMissing: (
        lambda: DriverMissing("dir.csi", "n7"),
        Code.UNAVAILABLE,
        (
            "edge node n7 is connected but has no driver dir.csi; check that the driver runs there and that the "
            "agent's --driver names its socket, and look at the agent's log"
        ),
    ),
    DriverAmbiguous: (
        lambda: DriverAmbiguous("dir.csi", "n7", ("/a.sock", "/b.sock")),
        Code.UNAVAILABLE,
        (
            "edge node n7 has 2 drivers with the name dir.csi: /a.sock, /b.sock; if one of them is the controller, "
            "name only its socket with the agent's --driver; otherwise stop one of them"
        ),
    ),
    NoRoute: (
        lambda: NoRoute("dir.csi", {"n7": True, "n8": False}),
        Code.UNAVAILABLE,
        (
            "driver dir.csi runs on several edge nodes (n7; n8, which is offline) and the call names none; set "
            "--placement=local or shared, or --nodeid, on the proxy driver, or, if a node is gone or no longer runs "
            "the driver, run csi-bridge forget NODE [DRIVER] on the hub's host"
        ),
    ),
    KnowledgeLost: (
        lambda: KnowledgeLost("dir.csi", "2026-11-21T09:12:03Z hub.db was gone or empty"),
        Code.UNAVAILABLE,
        (
            "the call for driver dir.csi names no edge node, and the hub has lost part of what the nodes had reported "
            "(2026-11-21T09:12:03Z hub.db was gone or empty); set --nodeid on the proxy driver, or, once csi-bridge "
            "status shows every node and its drivers again, run csi-bridge trust on the hub's host"
        ),
    ),
    NoPlace: (
        lambda: NoPlace("dir.csi", "volume v-1", "nobody tells"),
        Code.UNAVAILABLE,
        "the hub does not know which edge node of driver dir.csi has volume v-1: nobody tells",
    ),
    NoNodeFits: (
        lambda: NoNodeFits("dir.csi", "CreateVolume pvc-1", "none is there"),
        Code.UNAVAILABLE,
        "no edge node of driver dir.csi can be chosen for CreateVolume pvc-1: none is there",
    ),
    TooManyOpen: (
        lambda: TooManyOpen("dir.csi", "n7", 20_000),
        Code.UNAVAILABLE,
        (
            "edge node n7 gets no create of a new name of driver dir.csi, because the outcome of too many others is "
            "not known; their retries settle them: look at the driver on n7 and at the node's link, or raise "
            "--max-open-creates of the hub (20000)"
        ),
    ),
    OpenElsewhere: (
        lambda: OpenElsewhere("dir.csi", "DeleteVolume vol-1", "n1", ""),
        Code.UNAVAILABLE,
        (
            "DeleteVolume vol-1 of driver dir.csi has an open outcome on edge node n1, which is away or takes no "
            "calls: it goes on when n1 answers; if n1 is gone for good, switch its machine off, then csi-bridge forget "
            "n1"
        ),
    ),
    NobodyServes: (
        lambda: NobodyServes("dir.csi", "no edge node runs it"),
        Code.UNAVAILABLE,
        "no edge node serves driver dir.csi (--placement=shared): no edge node runs it",
    ),
    NameElsewhere: (
        lambda: NameElsewhere("dir.csi", "CreateVolume pvc-1", "n1", "n2"),
        Code.UNAVAILABLE,
        (
            "edge node n1 may have carried out CreateVolume pvc-1 of driver dir.csi already, and this call is for n2; "
            "send the call to n1 (with --nodeid or --placement of the proxy driver, or csi-bridge call --node n1), or, "
            "if that node will not come back, run csi-bridge forget n1 on the hub's host"
        ),
    ),
    ForeignId: (
        lambda: ForeignId("dir.csi", "CreateVolume pvc-1", "n1", "volume v-1", "n2"),
        Code.UNAVAILABLE,
        (
            "edge node n1 answered CreateVolume pvc-1 of driver dir.csi with volume v-1, which edge node n2 has; the "
            "answer is not passed on; look at the driver on n1, and run csi-bridge forget n1 on the hub's host if it "
            "will not come back"
        ),
    ),
    AnswerRefused: (
        lambda: AnswerRefused("dir.csi", "CreateVolume pvc-1", "n1", "more than one message"),
        Code.UNAVAILABLE,
        (
            "edge node n1 answered CreateVolume pvc-1 of driver dir.csi with more than one message; "
            "the answer is not passed on; look at the driver on n1"
        ),
    ),
    ReportRefused: (
        lambda: ReportRefused("dir.csi", "n1", "no rule allows it"),
        Code.UNAVAILABLE,
        "edge node n1 gets no call of driver dir.csi, because the hub refuses its report: no rule allows it",
    ),
    CapabilityMissing: (
        lambda: CapabilityMissing("dir.csi", "n1", "/csi.v1.Controller/ControllerExpandVolume", "EXPAND_VOLUME"),
        Code.UNAVAILABLE,
        (
            "ControllerExpandVolume needs the capability EXPAND_VOLUME, which driver dir.csi has on most of its edge "
            "nodes and lacks on n1; run the same version of the driver there"
        ),
    ),
    IdConflict: (
        lambda: IdConflict("dir.csi", "volume lv-1", ["n1", "n2"]),
        Code.FAILED_PRECONDITION,
        (
            "driver dir.csi has volume lv-1 on several edge nodes (n1; n2) and the call does not say which; name one: "
            "csi-bridge call --node NODE"
        ),
    ),
    SourceElsewhere: (
        lambda: SourceElsewhere("dir.csi", "snapshot s-1", "n1"),
        Code.RESOURCE_EXHAUSTED,
        (
            "snapshot s-1 of driver dir.csi is on edge node n1, and a copy of it is requested for another place; let "
            "the pod that uses the copy run on n1"
        ),
    ),
    SeveralNodes: (
        lambda: SeveralNodes("dir.csi", {"volume v-1": "n1", "volume v-2": "n2"}),
        Code.FAILED_PRECONDITION,
        "driver dir.csi can do this only within one edge node, and volume v-1 is on n1; volume v-2 is on n2",
    ),
    NotWhole: (
        lambda: NotWhole("dir.csi", "/csi.v1.Controller/ListThings", 3),
        Code.UNAVAILABLE,
        (
            "ListThings would have to ask all 3 edge nodes that run driver dir.csi, which the hub does not do yet; "
            "ask one: csi-bridge call --node NODE"
        ),
    ),
    NotListed: (
        lambda: NotListed(
            "dir.csi", "/csi.v1.Controller/ListVolumes", {"n2": "it is busy", "n1": "it is away", "n3": ""}
        ),
        Code.UNAVAILABLE,
        (
            "ListVolumes of driver dir.csi would lack the entries of edge node n1: it is away (and those of n2, n3); "
            "csi-bridge call --node NODE asks one node, and csi-bridge forget NODE is for a node that is gone for good"
        ),
    ),
    TokenUnknown: (
        lambda: TokenUnknown("/csi.v1.Controller/ListVolumes"),
        Code.ABORTED,
        "this starting_token of ListVolumes is for no list of the hub; begin again without one",
    ),
    VolumeHeld: (
        lambda: VolumeHeld("d.example", "v-1", "n2", "it is offline since then"),
        Code.UNAVAILABLE,
        "volume v-1 of driver d.example is not detached from node n2: it is offline since then",
    ),
    FieldMissing: (
        lambda: FieldMissing("/csi.v1.Controller/DeleteVolume", "volume_id"),
        Code.UNAVAILABLE,
        "DeleteVolume needs the field volume_id, which is empty",
    ),
    PlacementNotKept: (
        lambda: PlacementNotKept("placement.db", "disk full"),
        Code.UNAVAILABLE,
        (
            "the hub cannot record which edge node this is on (placement.db: disk full); make room on the disk or "
            "repair it, and a retry continues"
        ),
    ),
    HubUnreachable: (
        lambda: HubUnreachable("wss://hub:7443", SINCE_S),
        Code.UNAVAILABLE,
        (
            "the proxy driver has no link to the hub at wss://hub:7443 since 2026-11-21T09:12:03Z; look at the proxy "
            "driver's log, which says why, and at the hub's"
        ),
    ),
    LinkLost: (
        lambda: LinkLost("edge node n7", "nothing was heard for 20 s"),
        Code.UNAVAILABLE,
        (
            "the link to edge node n7 was lost with the call under way; an operation that the call started may still "
            "be running, and a retry joins it"
        ),
    ),
    Draining: (
        lambda: Draining("hub"),
        Code.UNAVAILABLE,
        "the hub is shutting down and takes no new calls; a retry reaches the process that replaces it",
    ),
    CallTimeout: (
        lambda: CallTimeout("edge node n7"),
        Code.DEADLINE_EXCEEDED,
        (
            "edge node n7 did not answer before the caller's deadline; an operation that the call started may still be "
            "running, and a retry joins it"
        ),
    ),
    EpochOver: (
        lambda: EpochOver("dir.csi", "n7", 5, 7),
        Code.ABORTED,
        (
            "the call is of epoch 5 of driver dir.csi, and edge node n7 has seen epoch 7; a retry goes to the node "
            "that serves the driver now"
        ),
    ),
    LeaseOver: (
        lambda: LeaseOver("dir.csi", "n7"),
        Code.UNAVAILABLE,
        (
            "the agent on edge node n7 had no answer of the hub for --controller-lease, so it made no call to driver "
            "dir.csi, or cancelled it; a retry asks the driver again"
        ),
    ),
    OperationLimit: (
        lambda: OperationLimit("dir.csi", "n7", 600.0),
        Code.DEADLINE_EXCEEDED,
        (
            "driver dir.csi on edge node n7 did not finish within --operation-limit (600 s) and the call to it was "
            "cancelled; look at the driver's log"
        ),
    ),
    OperationConflict: (
        lambda: OperationConflict("dir.csi", "n7", "CreateVolume pvc-1"),
        Code.ABORTED,
        (
            "CreateVolume pvc-1 is already under way with other arguments at driver dir.csi on edge node n7; retry "
            "when it has ended"
        ),
    ),
    OperationBusy: (
        lambda: OperationBusy("dir.csi", "n7", "DeleteVolume v1", "ControllerPublishVolume v1 a"),
        Code.ABORTED,
        (
            "DeleteVolume v1 has to wait, because ControllerPublishVolume v1 a is under way at driver dir.csi on edge "
            "node n7; retry when it has ended"
        ),
    ),
    MessageTooLarge: (
        lambda: MessageTooLarge(5_000_000, 4_194_304, "a CSI message"),
        Code.UNAVAILABLE,
        (
            "a CSI message of 5000000 bytes is larger than the limit of 4194304 bytes; raise --max-message on hub, "
            "driver and agent"
        ),
    ),
    Overloaded: (
        lambda: Overloaded("hub", 1_024, "--max-calls"),
        Code.UNAVAILABLE,
        "the hub has 1024 calls under way, which is its limit (--max-calls); retry later or raise it",
    ),
    VendorBroken: (
        lambda: VendorBroken("dir.csi", "n7", "the driver reset the stream"),
        Code.UNAVAILABLE,
        "driver dir.csi on edge node n7: the driver reset the stream; look at the driver's log there",
    ),
    NothingKnown: (
        lambda: NothingKnown("dir.csi", "no agent has reported it"),
        Code.UNAVAILABLE,
        "nothing is known of driver dir.csi yet: no agent has reported it",
    ),
    ForeignDriver: (
        lambda: ForeignDriver("mine.csi", "dir.csi"),
        Code.UNAVAILABLE,
        "proxy driver mine.csi may call only its own driver at this hub, not dir.csi; check its --drivername",
    ),
    OperatorRefused: (
        lambda: OperatorRefused("edge node n7 is not forgotten", "it is connected; stop its agent first"),
        Code.UNAVAILABLE,
        "edge node n7 is not forgotten: it is connected; stop its agent first",
    ),
    NotCarried: (
        lambda: NotCarried("/csi.v1.Node/NodeStageVolume", "a kubelet asks the driver itself"),
        Code.UNIMPLEMENTED,
        "/csi.v1.Node/NodeStageVolume is not served here: a kubelet asks the driver itself",
    ),
}
"""Every row of the table: how it is made, its code, and its text, which users see in events."""

ROWS = [pytest.param(*row, id=error.__name__) for error, row in TABLE.items()]


def errors_below(parent: type[BaseException]) -> set[type[BaseException]]:
    return {
        found
        for _, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, parent) and found is not parent
    }


def test_every_call_error_has_a_code_and_a_row_here() -> None:
    assert errors_below(CallError) == set(CODES) == set(TABLE)


@pytest.mark.parametrize(("make", "code", "text"), ROWS)
def test_a_call_error_becomes_this_status(make: Callable[[], CallError], code: Code, text: str) -> None:
    for origin in Origin:
        assert status_of(make(), origin) == Status(code, text, origin)


@pytest.mark.parametrize(("make", "code", "text"), ROWS)
def test_a_call_errors_text_is_the_same_on_a_retry(make: Callable[[], CallError], code: Code, text: str) -> None:
    assert str(make()) == str(make()) == text


def test_a_final_code_says_that_nothing_can_have_run() -> None:
    """docs/csi-contract.md#a-final-code-makes-a-sidecar-forget: these calls were sent to no driver."""
    not_final = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.ABORTED}
    assert {error: code for error, code in CODES.items() if code not in not_final} == {
        NotCarried: Code.UNIMPLEMENTED,
        IdConflict: Code.FAILED_PRECONDITION,
        SeveralNodes: Code.FAILED_PRECONDITION,
        SourceElsewhere: Code.RESOURCE_EXHAUSTED,
    }


def test_a_lost_link_says_the_same_whatever_the_cause_because_a_changing_text_makes_new_events() -> None:
    assert str(LinkLost("edge node n7", "cable cut")) == str(LinkLost("edge node n7", "nothing was heard for 20 s"))


def test_a_call_that_ended_without_an_answer_promises_nothing_that_is_untrue_of_a_read() -> None:
    """Only an operation goes on: a read, a stream or an unknown method is cancelled with its link or its caller."""
    for error in (LinkLost("the hub", "cable cut"), CallTimeout("the hub")):
        assert str(error).endswith("; an operation that the call started may still be running, and a retry joins it")


def test_no_route_without_candidates_says_where_to_look() -> None:
    assert str(NoRoute("dir.csi")) == (
        "no edge node has reported driver dir.csi to the hub yet; check that an agent is connected and that its "
        "--driver names the driver's socket"
    )


def test_of_very_many_nodes_with_the_driver_ten_are_named() -> None:
    text = str(NoRoute("dir.csi", {f"n{number:02}": True for number in range(12)}))
    assert "; n08; n09; and 2 more) and" in text


def test_a_message_that_no_flag_can_make_fit_has_its_own_remedy() -> None:
    text = str(MessageTooLarge(5_000_000, 4_194_304, "an answer", "no sidecar takes more; ask the driver's vendor"))
    assert text.endswith("; no sidecar takes more; ask the driver's vendor")


def test_a_timeout_without_a_name_speaks_of_the_peer() -> None:
    assert str(CallTimeout()).startswith("the peer did not answer before the caller's deadline")


@pytest.mark.parametrize(
    ("origin", "hop"),
    [(Origin.VENDOR, "driver"), (Origin.EDGE, "edge agent"), (Origin.HUB, "hub"), (Origin.PROXY, "proxy driver")],
)
@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("s3cr3t"),
        TunnelClosed(sent=True, why="s3cr3t"),
        RemoteProtocolError("s3cr3t"),
        SettingsError("KEY", "s3cr3t", "no"),
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


def test_a_call_error_that_the_table_does_not_name_is_unavailable() -> None:
    class Newer(CallError):
        """Of a later version."""

    assert status_of(Newer("new"), Origin.HUB) == Status(Code.UNAVAILABLE, "new", Origin.HUB)


@pytest.mark.parametrize(
    ("error", "parents"),
    [
        (SettingsError, (BridgeError,)),
        (LocalProtocolError, (ProtocolError, BridgeError)),
        (RemoteProtocolError, (ProtocolError, BridgeError)),
        (DialError, (LinkError, BridgeError)),
        (HandshakeRefused, (LinkError, BridgeError)),
        (TunnelClosed, (LinkError, BridgeError)),
        *((error, (CallError, BridgeError)) for error in TABLE),
    ],
)
def test_errors_are_sorted_by_blame(error: type[BridgeError], parents: tuple[type[BridgeError], ...]) -> None:
    assert issubclass(error, parents)
    assert error.__mro__[1] is parents[0]


def test_errors_about_links_say_what_and_why() -> None:
    assert str(DialError("wss://hub:7443", "connection refused")) == "cannot reach wss://hub:7443: connection refused"
    assert str(TunnelClosed(sent=True, why="peer went away")) == "the session ended: peer went away"
    refused = HandshakeRefused("name-taken", "node n7 is connected already")
    assert (refused.reason, str(refused)) == ("name-taken", "node n7 is connected already")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("7x", "KEEPALIVE=7x: not a time"),
        (7, "KEEPALIVE=7: not a time"),
        ("", "KEEPALIVE: not a time"),
        (None, "KEEPALIVE: not a time"),
        (["7x", "8x"], "KEEPALIVE=['7x', '8x']: not a time"),
    ],
)
def test_a_settings_error_names_the_variable_and_its_value(value: object, text: str) -> None:
    assert str(SettingsError("KEEPALIVE", value, "not a time")) == text


def test_a_timestamp_is_absolute_utc_to_the_second() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00Z"
    assert timestamp(SINCE_S) == "2026-11-21T09:12:03Z"
