"""An error of the bridge: whose fault it is, what the caller can do, and which gRPC code it becomes.

Rules:

* If the bridge does not know an outcome for certain, the caller gets a code that no sidecar takes as final
  (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget). A class says its code; other errors are UNAVAILABLE.
* A message names the hop, the node, the driver and the remedy. It has absolute times, so that it is the same for each
  retry (docs/csi-contract.md#an-error-message-stays-the-same).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from common.status import Code, Origin, Status

_MAY_GO_ON = "an operation that the call started may still be running, and a retry joins it"
"""A hope, not a promise: a read or a stream is cancelled, and only the agent knows which calls are operations."""


_MOST_NAMED = 10
"""The most nodes that one message names."""


class BridgeError(Exception):
    """Any error of the bridge itself. `str()` is a sentence for people."""


class SettingsError(BridgeError):
    """A flag or environment variable has a value that cannot be used."""

    def __init__(self, variable: str, value: object, why: str) -> None:
        self.variable, self.value, self.why = variable, value, why
        super().__init__(f"{variable}={value!s}: {why}" if value is not None and value != "" else f"{variable}: {why}")


class NewerState(SettingsError):
    """A newer program wrote a file of the state directory. This program leaves the file as it is."""

    def __init__(self, path: object, owner: str, found: int, known: int) -> None:
        super().__init__(
            "--state-dir",
            path,
            f"was written by a newer {owner} (schema {found}, this one knows {known}); start the newer version again, "
            f"or see docs/recovery.md#going-back-a-version",
        )


class LeadershipLost(BridgeError):
    """This hub has lost the Lease of its cluster, or cannot write its epoch: it leads no more. The process must end."""


class LocalProtocolError(BridgeError):
    """This side used the session against its rules: a bug."""


class RemoteProtocolError(BridgeError):
    """The peer broke the rules of the session protocol. The session ends with this reason."""


class DialError(BridgeError):
    """No link could be made to `endpoint`."""

    def __init__(self, endpoint: str, why: str) -> None:
        self.endpoint, self.why = endpoint, why
        super().__init__(f"cannot reach {endpoint}: {why}")


class HandshakeRefused(BridgeError):
    """A hello was refused.

    Attributes:
        reason: a word from a closed set, fit for a metric label.
        why: the sentence for people at the other side.
        shown: the sentence for people at this side. It may hold what the refused peer must not learn.
    """

    def __init__(self, reason: str, why: str, *, shown: str = "") -> None:
        self.reason, self.why, self.shown = reason, why, shown or why
        super().__init__(why)


class TunnelClosed(BridgeError):
    """The session ended with a stream open.

    Attributes:
        sent: False only if the peer surely never served the stream: the transport got no frame of it, or the peer's
            goodbye says so.
        why: why the session ended.
    """

    def __init__(self, *, sent: bool, why: str) -> None:
        self.sent, self.why = sent, why
        super().__init__(f"the session ended: {why}")


class CallError(BridgeError):
    """A call that ended without a status of the vendor's own.

    Four have final codes: their calls were certainly sent to no driver. RESOURCE_EXHAUSTED lets the scheduler choose
    another node (docs/csi-contract.md#resource_exhausted-lets-the-scheduler-choose-again).

    Attributes:
        code: what the caller gets.
        is_unsent: whether the agent has surely sent nothing of this call to the driver. An earlier call of the same
            operation may have been sent all the same.
    """

    code = Code.UNAVAILABLE
    is_unsent = False


class NodeOffline(CallError):
    """The call's edge node is known, and not connected."""

    def __init__(self, node: str, since: float) -> None:
        super().__init__(
            f"edge node {node} is offline since {timestamp(since)}; "
            f"look at the log of its csi-bridge edge agent and at the network between it and the hub"
        )


class NodeUnknown(CallError):
    """The call's edge node has never connected to this hub."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"edge node {node} has never connected to this hub; compare --nodeid of the proxy driver with --node of "
            f"the edge agent, and look at the agent's log"
        )


class DriverMissing(CallError):
    """The node is connected, but its agent does not know the driver, or no socket of it that serves the call."""

    is_unsent = True

    def __init__(self, driver: str, node: str, service: str = "") -> None:
        wanted = f"{driver} that serves {service}" if service else driver
        super().__init__(
            f"edge node {node} is connected but has no driver {wanted}; check that the driver runs there and that the "
            f"agent's --driver names its socket, and look at the agent's log"
        )


class ReportRefused(CallError):
    """The hub refuses the node's report of the driver, so the node gets no call of it. Nothing was sent."""

    def __init__(self, driver: str, node: str, why: str) -> None:
        super().__init__(f"edge node {node} gets no call of driver {driver}, because the hub refuses its report: {why}")


class CapabilityMissing(CallError):
    """The driver lacks a capability on the call's node that it has on most nodes. Nothing was sent."""

    def __init__(self, driver: str, node: str, method: str, capability: str) -> None:
        self.node = node
        super().__init__(
            f"{method.rpartition('/')[2]} needs the capability {capability}, which driver {driver} has on most of its "
            f"edge nodes and lacks on {node}; run the same version of the driver there"
        )


class DriverAmbiguous(CallError):
    """Two sockets of the node have the same driver name and services, so the agent cannot choose one."""

    is_unsent = True

    def __init__(self, driver: str, node: str, sockets: tuple[str, ...]) -> None:
        super().__init__(
            f"edge node {node} has {len(sockets)} drivers with the name {driver}: {', '.join(sockets)}; if one of them "
            f"is the controller, name only its socket with the agent's --driver; otherwise stop one of them"
        )


class NoRoute(CallError):
    """The hub cannot tell which node the call is for. `candidates` has the nodes and whether each is connected."""

    def __init__(self, driver: str, candidates: Mapping[str, bool] | None = None) -> None:
        super().__init__(
            f"driver {driver} runs on several edge nodes ({_named(candidates)}) and the call names none; set "
            f"--placement=local or shared, or --nodeid, on the proxy driver, or, if a node is gone or no longer runs "
            f"the driver, run csi-bridge forget NODE [DRIVER] on the hub's host"
            if candidates
            else f"no edge node has reported driver {driver} to the hub yet; check that an agent is connected and that "
            f"its --driver names the driver's socket"
        )


class KnowledgeLost(CallError):
    """The hub cannot tell which node the call is for, because it has lost records."""

    def __init__(self, driver: str, loss: str) -> None:
        super().__init__(
            f"the call for driver {driver} names no edge node, and the hub has lost records ({loss}); set --nodeid on "
            f"the proxy driver, or, once csi-bridge status shows every node and its drivers again, run csi-bridge "
            f"trust on the hub's host"
        )


class NoPlace(CallError):
    """The hub does not know which node has the object of the call. The object may exist all the same."""

    def __init__(self, driver: str, what: str, why: str) -> None:
        super().__init__(f"the hub does not know which edge node of driver {driver} has {what}: {why}")


class NoNodeFits(CallError):
    """No node fits the object that the call creates. Nothing was sent."""

    def __init__(self, driver: str, name: str, why: str) -> None:
        super().__init__(f"no edge node of driver {driver} can be chosen for {name}: {why}")


class TooManyOpen(CallError):
    """The outcome of too many creates of the driver is not known. This one has a new name, and was not sent."""

    def __init__(self, driver: str, node: str, limit: int) -> None:
        super().__init__(
            f"edge node {node} gets no create of a new name of driver {driver}, because the outcome of too many others "
            f"is not known; their retries settle them: look at the driver on {node} and at the node's link, or raise "
            f"--max-open-creates of the hub ({limit})"
        )


class NameElsewhere(CallError):
    """A create call is for one node, and another node has taken its name: an object may exist there."""

    def __init__(self, driver: str, name: str, node: str, wanted: str) -> None:
        self.node, self.wanted = node, wanted
        super().__init__(
            f"edge node {node} may have carried out {name} of driver {driver} already, and this call is for {wanted}; "
            f"send the call to {node} (with --nodeid or --placement of the proxy driver, or csi-bridge call --node "
            f"{node}), or, if that node will not come back, run csi-bridge forget {node} on the hub's host"
        )


class OpenElsewhere(CallError):
    """The outcome of an earlier call about the same thing is open on a node that is not connected. Nothing was sent.

    The driver's storage is reached by every node, and another node serves it by now. But two nodes must not carry out
    calls about one thing at the same time. With `is_renamed`, another machine has the node's name by now.
    """

    def __init__(self, driver: str, key: str, node: str, until: str, *, is_renamed: bool = False) -> None:
        super().__init__(
            f"{key} of driver {driver} has an open outcome on another machine that had the name of edge node {node}: "
            f"it goes on when that one is back{until}; if it is switched off for good, run the command that csi-bridge "
            f"audit shows for the call"
            if is_renamed
            else f"{key} of driver {driver} has an open outcome on edge node {node}, which is away or takes no calls: "
            f"it goes on when {node} answers{until}; if {node} is gone for good, switch its machine off, then "
            f"csi-bridge forget {node}"
        )


class NobodyServes(CallError):
    """No node can be elected to serve a driver whose storage is reached by every node. Nothing was sent."""

    def __init__(self, driver: str, why: str) -> None:
        super().__init__(f"no edge node serves driver {driver} (--placement=shared): {why}")


class ForeignId(CallError):
    """A node answered a create with the id of an object of another node. The caller must not get it."""

    def __init__(self, driver: str, name: str, node: str, what: str, owner: str) -> None:
        self.driver, self.name, self.node = driver, name, node
        super().__init__(
            f"edge node {node} answered {name} of driver {driver} with {what}, which edge node {owner} has; the "
            f"answer is not passed on; look at the driver on both: one of them names what is not its own, and "
            f"csi-bridge forget NODE on the hub's host takes it from that one"
        )


class AnswerRefused(CallError):
    """A node's answer to a create has ids that the hub cannot read, or a volume for other nodes than itself."""

    def __init__(self, driver: str, name: str, node: str, why: str) -> None:
        self.driver, self.name, self.node = driver, name, node
        super().__init__(
            f"edge node {node} answered {name} of driver {driver} with {why}; the answer is not passed on; look at the "
            f"driver on {node}"
        )


class IdConflict(CallError):
    """Several nodes have an object with this id, and the call does not name a node."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, driver: str, what: str, nodes: Sequence[str]) -> None:
        super().__init__(
            f"driver {driver} has {what} on several edge nodes ({_named(dict.fromkeys(nodes, True))}) and the call "
            f"does not say which; name one: csi-bridge call --node NODE"
        )


class SourceElsewhere(CallError):
    """A copy was requested on other nodes than the one with the source. Nothing was sent."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, driver: str, source: str, node: str) -> None:
        super().__init__(
            f"{source} of driver {driver} is on edge node {node}, and a copy of it is requested for another place; let "
            f"the pod that uses the copy run on {node}"
        )


class SeveralNodes(CallError):
    """A call combines objects of several nodes, which no vendor's driver can do. Nothing was sent."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, driver: str, places: Mapping[str, str]) -> None:
        told = [f"{what} is on {node}" for what, node in places.items()]
        more = [f"and {len(told) - _MOST_NAMED} more"] * (len(told) > _MOST_NAMED)
        super().__init__(
            f"driver {driver} can do this only within one edge node, and {'; '.join([*told[:_MOST_NAMED], *more])}"
        )


class NotWhole(CallError):
    """The call asks for all nodes, and one node's answer would be taken for the whole."""

    def __init__(self, driver: str, method: str, nodes: int) -> None:
        super().__init__(
            f"{method.rpartition('/')[2]} would have to ask all {nodes} edge nodes that run driver {driver}, which the "
            f"hub does not do yet; ask one: csi-bridge call --node NODE"
        )


class NotListed(CallError):
    """A list of all nodes would lack a node's entries. The node has no complete list that is recent enough.

    Attributes:
        missing: by node: why it has not listed all.
    """

    def __init__(self, driver: str, method: str, missing: Mapping[str, str]) -> None:
        node, *others = sorted(missing)
        named = others[: _MOST_NAMED - 1] + [f"{len(others) - _MOST_NAMED + 1} more"] * (len(others) >= _MOST_NAMED)
        what, more = method.rpartition("/")[2], f" (and those of {', '.join(named)})" if named else ""
        super().__init__(
            f"{what} of driver {driver} would lack the entries of edge node {node}: {missing[node]}{more}; "
            f"csi-bridge call --node NODE asks one node, and csi-bridge forget NODE is for a node that is gone for good"
        )


class TokenUnknown(CallError):
    """The page token is for no list that the hub can go on with: it is too old, or of another hub process or node."""

    code = Code.ABORTED

    def __init__(self, method: str, node: str = "") -> None:
        whose = f"is for a list of edge node {node}, and another one serves" if node else "is for no list of the hub"
        super().__init__(f"this starting_token of {method.rpartition('/')[2]} {whose}; begin again without one")


class FieldMissing(CallError):
    """A request lacks the id of its object, so the hub cannot choose one of several nodes. Nothing was sent.

    Its code is UNAVAILABLE: only vendors answer INVALID_ARGUMENT
    (docs/csi-contract.md#the-vendors-errors-pass-unchanged).
    """

    def __init__(self, method: str, field: str) -> None:
        super().__init__(f"{method.rpartition('/')[2]} needs the field {field}, which is empty")


class PlacementNotKept(CallError):
    """The hub could not store where an object is, so it did not begin the call, or does not report success yet."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"the hub cannot record which edge node this is on ({path}: {why}); make room on the disk or repair it, "
            f"and a retry continues"
        )


class VolumeHeld(CallError):
    """A volume is not detached from a node, which has it mounted or may have it mounted. Nothing was sent."""

    def __init__(self, driver: str, volume: str, node: str, why: str) -> None:
        super().__init__(f"volume {volume} of driver {driver} is not detached from node {node}: {why}")


class HubUnreachable(CallError):
    """The proxy driver has no link to a hub that leads."""

    def __init__(self, why: str, since: float) -> None:
        super().__init__(
            f"the proxy driver has no link to the hub since {timestamp(since)}: {why}; look at the hub's log, and at "
            f"the proxy driver's"
        )


class LinkLost(CallError):
    """The link was lost during the call. An operation may go on at the other end; any other call ends."""

    def __init__(self, to: str) -> None:
        super().__init__(f"the link to {to} was lost with the call under way; {_MAY_GO_ON}")


class Draining(CallError):
    """This process is shutting down and takes no new calls."""

    def __init__(self, hop: str) -> None:
        super().__init__(
            f"the {hop} is shutting down and takes no new calls; a retry reaches the process that replaces it"
        )


class StandsBy(CallError):
    """This hub is a standby: another one serves calls, and takes orders."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"this hub is a standby, and only the hub that leads takes calls and orders: {why}")


class CallTimeout(CallError):
    """The caller's deadline has passed. An operation goes on; any other call is cancelled."""

    code = Code.DEADLINE_EXCEEDED

    def __init__(self, to: str = "the peer", within_s: float | None = None) -> None:
        time = f" ({within_s:.3g} s)" if within_s is not None else ""
        super().__init__(f"{to} did not answer before the caller's deadline{time}; {_MAY_GO_ON}")


class OperationLimit(CallError):
    """The vendor's driver did not finish within `--operation-limit`: the call to it was cancelled, its key is free."""

    code = Code.DEADLINE_EXCEEDED

    def __init__(self, driver: str, node: str, limit_s: float) -> None:
        super().__init__(
            f"driver {driver} on edge node {node} did not finish within --operation-limit ({limit_s:g} s) and the call "
            f"to it was cancelled; look at the driver's log"
        )


class OperationConflict(CallError):
    """The same operation is under way with other arguments."""

    code = Code.ABORTED
    is_unsent = True

    def __init__(self, driver: str, node: str, operation: str) -> None:
        super().__init__(
            f"{operation} is already under way with other arguments at driver {driver} on edge node {node}; retry when "
            f"it has ended"
        )


class OperationBusy(CallError):
    """Another operation on the same object is under way, and its outcome must be known first. Nothing was sent."""

    code = Code.ABORTED
    is_unsent = True

    def __init__(self, driver: str, node: str, operation: str, other: str) -> None:
        super().__init__(
            f"{operation} has to wait, because {other} is under way at driver {driver} on edge node {node}; retry when "
            f"it has ended"
        )


class EpochOver(CallError):
    """The call is of an older election of the driver's serving node than the agent has seen. Nothing was sent.

    Its code is ABORTED: an agent's UNAVAILABLE tells the hub that no operation of the call's key runs there.
    """

    code = Code.ABORTED
    is_unsent = True

    def __init__(self, driver: str, node: str, epoch: int, seen: int) -> None:
        super().__init__(
            f"the call is of epoch {epoch} of driver {driver}, and edge node {node} has seen epoch {seen}; a retry "
            f"goes to the node that serves the driver now"
        )


class LeaseOver(CallError):
    """The agent had no answer of its hub for `--controller-lease`: it cancelled the call to the driver, or sent none.

    The outcome is not known to whoever asks: the driver may have done its work all the same.
    """

    def __init__(self, driver: str, node: str) -> None:
        super().__init__(
            f"the agent on edge node {node} had no answer of the hub for --controller-lease, so it made no call to "
            f"driver {driver}, or cancelled it; a retry asks the driver again"
        )


class MessageTooLarge(CallError):
    """A CSI message is larger than this process carries (`--max-message`)."""

    def __init__(
        self, size: int, limit: int, what: str, remedy: str = "raise --max-message on hub, driver and agent"
    ) -> None:
        super().__init__(f"{what} of {size} bytes is larger than the limit of {limit} bytes; {remedy}")


class Overloaded(CallError):
    """Too many calls are under way at once."""

    is_unsent = True

    def __init__(self, hop: str, limit: int, flag: str) -> None:
        self.limit, self.flag = limit, flag
        super().__init__(f"the {hop} has {limit} calls under way, which is its limit ({flag}); retry later or raise it")


class VendorBroken(CallError):
    """The vendor's driver could not be reached, or its answer was not valid."""

    def __init__(self, driver: str, node: str, why: str) -> None:
        self.why = why
        super().__init__(f"driver {driver} on edge node {node}: {why}; look at the driver's log there")


class NothingKnown(CallError):
    """No driver has answered this Identity or capability call yet."""

    def __init__(self, driver: str, why: str) -> None:
        super().__init__(f"nothing is known of driver {driver} yet: {why}")


class NotCarried(CallError):
    """This socket does not serve the method."""

    code = Code.UNIMPLEMENTED
    is_unsent = True

    def __init__(self, method: str, why: str) -> None:
        super().__init__(f"{method} is not served here: {why}")


class ForeignDriver(CallError):
    """A proxy driver called another driver than its own. Nothing was sent."""

    def __init__(self, proxy: str, driver: str) -> None:
        super().__init__(
            f"proxy driver {proxy} may call only its own driver at this hub, not {driver}; check its --drivername"
        )


class OperatorRefused(CallError):
    """The hub refused an operator's command. No sidecar sees this."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def status_of(error: BaseException | None, origin: Origin) -> Status:
    """The caller's status for an error. `None` is a handler that ended without an answer.

    An error that is no `CallError` is a bug: UNAVAILABLE, with the details in the log only. Sidecars would take UNKNOWN
    and INTERNAL as proof that nothing happened.
    """
    if isinstance(error, CallError):
        return Status(error.code, str(error), origin)
    return Status(Code.UNAVAILABLE, f"an internal error in the {_HOPS[origin]}; its log has the details", origin)


def stopped(origin: Origin) -> Status:
    """The status of a call that is not finished when its hop stops."""
    return Status(Code.UNAVAILABLE, "the call was stopped; a retry is safe", origin)


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as `2026-11-21T09:12:03Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _named(candidates: Mapping[str, bool]) -> str:
    """Node names for a message. At most `_MOST_NAMED`: some gRPC libraries refuse very long messages."""
    names = [name if connected else f"{name}, which is offline" for name, connected in candidates.items()]
    more = len(names) - _MOST_NAMED
    return "; ".join(names[:_MOST_NAMED] + [f"and {more} more"] * (more > 0))


_HOPS = {
    Origin.VENDOR: "driver",
    Origin.EDGE: "edge agent",
    Origin.UNSENT: "edge agent",
    Origin.HUB: "hub",
    Origin.PROXY: "proxy driver",
}
