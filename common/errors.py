"""An error of the bridge: whose fault it is, what the caller can do, and which gRPC code it becomes.

Rules:

* If the bridge does not know an outcome for certain, the caller gets a code that no sidecar takes as final
  (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget): UNAVAILABLE, unless the error says another one.
* An error has its own class only if some code handles it differently.
* A message names the hop, the node, the driver and the remedy. It has absolute times, so that it is the same for each
  retry (docs/csi-contract.md#an-error-message-stays-the-same).

    BridgeError
    ├── SettingsError          a flag or variable cannot be used
    ├── LeadershipLost         the hub's process must end
    ├── RemoteProtocolError    the peer broke the rules of the session
    ├── DialError              no link could be made
    ├── HandshakeRefused       the hello or certificate request was refused
    ├── TunnelClosed           the session ended with a stream open
    └── CallError              the caller's error; functions below make those that no code distinguishes
        ├── CallTimeout        the deadline passed   ┐ the driver may go on
        ├── LinkLost           the link broke        ┘
        ├── MessageTooLarge
        ├── Overloaded
        ├── VendorBroken       the driver could not be reached, or its answer was not valid
        └── VolumeHeld         a detach that must wait

Elsewhere: `KubeError` (`cloud.kube.client`), `VolumeError` with its own tree (`edge.volume_errors`), `NotRegistered`
(`edge.registry.registration`).
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from common.status import Code, Origin, Status
from common.wording import first_names

# An operation is a call that changes something (`edge.operations`). It goes on without its caller; any other call ends.
# The text says `may`, because only the agent knows which calls are operations.
_MAY_GO_ON = "an operation that the call started may still be running, and a retry joins it"

_MOST_NODES = 10  # the most nodes that one message names


class BridgeError(Exception):
    """Any error of the bridge itself. `str()` is a sentence for people."""


class SettingsError(BridgeError):
    """A flag or environment variable has a value that cannot be used."""

    def __init__(self, variable: str, value: object, why: str) -> None:
        self.variable = variable
        self.value = value
        self.why = why
        shown = variable if value is None or value == "" else f"{variable}={value!s}"
        super().__init__(f"{shown}: {why}")


class LeadershipLost(BridgeError):
    """This hub has lost the Lease of its cluster, or cannot write its epoch: it leads no more. The process must end."""


class RemoteProtocolError(BridgeError):
    """The peer broke the rules of the session protocol. The session ends with this reason."""


class DialError(BridgeError):
    """No link could be made to `endpoint`."""

    def __init__(self, endpoint: str, why: str) -> None:
        self.endpoint = endpoint
        self.why = why
        super().__init__(f"cannot reach {endpoint}: {why}")


class HandshakeRefused(BridgeError):
    """A hello, or a request for a certificate, was refused.

    `shown` is for this side's log and operators. It may hold details that the refused peer must not learn.

    Attributes:
        reason: a word from a closed set, fit for a metric label.
    """

    def __init__(self, reason: str, why: str, *, shown: str = "") -> None:
        self.reason = reason
        self.why = why
        self.shown = shown or why
        super().__init__(why)


class TunnelClosed(BridgeError):
    """The session ended with a stream open.

    Attributes:
        sent: False only if the peer surely never served the stream: the transport got no frame of it, or the peer's
            goodbye says so.
    """

    def __init__(self, *, sent: bool, why: str) -> None:
        self.sent = sent
        self.why = why
        super().__init__(f"the session ended: {why}")


class CallError(BridgeError):
    """A call that ended without a status of the vendor's own.

    Only a call that was certainly sent to no driver has a final code.

    Attributes:
        code: the caller's gRPC code.
        is_unsent: whether the agent has surely sent nothing of this call to the driver. An earlier call of the same
            operation may have been sent all the same.
        node: the node that the hub's metrics name for a call that the hub sent to no node; may be empty.
    """

    def __init__(self, text: str, *, code: Code = Code.UNAVAILABLE, is_unsent: bool = False, node: str = "") -> None:
        self.code = code
        self.is_unsent = is_unsent
        self.node = node
        super().__init__(text)


class CallTimeout(CallError):
    """The caller's deadline has passed. An operation goes on; any other call is cancelled."""

    def __init__(self, to: str = "the peer", within_s: float | None = None) -> None:
        time = f" ({within_s:.3g} s)" if within_s is not None else ""
        text = f"{to} did not answer before the caller's deadline{time}; {_MAY_GO_ON}"
        super().__init__(text, code=Code.DEADLINE_EXCEEDED)


class LinkLost(CallError):
    """The link was lost during the call. An operation may go on at the other end; any other call ends."""

    def __init__(self, to: str) -> None:
        super().__init__(f"the link to {to} was lost with the call under way; {_MAY_GO_ON}")


class MessageTooLarge(CallError):
    """A message or name is too large for this side or its peer."""

    def __init__(
        self,
        size: int,
        limit: int,
        noun: str,
        remedy: str = "raise --max-message on hub, driver and agent",
        *,
        unit: str = "bytes",
    ) -> None:
        super().__init__(f"{noun} of {size} {unit} is larger than the limit of {limit} {unit}; {remedy}")


class Overloaded(CallError):
    """Too many calls are under way at once."""

    def __init__(self, hop: str, limit: int, flag: str) -> None:
        self.limit = limit
        self.flag = flag
        text = f"the {hop} has {limit} calls under way, which is its limit ({flag}); retry later or raise it"
        super().__init__(text, is_unsent=True)


class VendorBroken(CallError):
    """The vendor's driver could not be reached, or its answer was not valid."""

    def __init__(self, driver: str, node: str, why: str) -> None:
        self.why = why
        super().__init__(f"driver {driver} on edge node {node}: {why}; look at the driver's log there")


class VolumeHeld(CallError):
    """A volume is not detached from a node, which has it mounted or may have it mounted. Nothing was sent."""

    def __init__(self, driver: str, volume: str, node: str, why: str) -> None:
        super().__init__(f"volume {volume} of driver {driver} is not detached from node {node}: {why}")


# ---- errors that several modules raise, and no code distinguishes ----------------------------------------------------


def newer_state(path: object, owner: str, found: int, known: int) -> SettingsError:
    """A newer program wrote a file of the state directory. This program leaves the file as it is."""
    return SettingsError(
        "--state-dir",
        path,
        f"was written by a newer {owner} (schema {found}, this one knows {known}); start the newer version again, or "
        f"see docs/recovery.md#going-back-a-version",
    )


def shutting_down(hop: str) -> CallError:
    return CallError(f"the {hop} is shutting down and takes no new calls; a retry reaches the process that replaces it")


def not_carried(method: str, why: str) -> CallError:
    return CallError(f"{method} is not served here: {why}", code=Code.UNIMPLEMENTED, is_unsent=True)


def node_offline(node: str, since: float) -> CallError:
    """The call's edge node is known, and not connected."""
    return CallError(
        f"edge node {node} is offline since {timestamp(since)}; "
        f"look at the log of its csi-bridge edge agent and at the network between it and the hub"
    )


def driver_missing(driver: str, node: str, service: str = "") -> CallError:
    """The node is connected, but its agent knows no such driver, or no socket of the driver that serves the call."""
    wanted = f"{driver} that serves {service}" if service else driver
    return CallError(
        f"edge node {node} is connected but has no driver {wanted}; check that the driver runs there and that the "
        f"agent's --driver names its socket, and look at the agent's log",
        is_unsent=True,
    )


def knowledge_lost(driver: str, loss: str) -> CallError:
    """The hub cannot tell which node the call is for, because it has lost records."""
    return CallError(
        f"the call for driver {driver} names no edge node, and the hub has lost records ({loss}); set --nodeid on "
        f"the proxy driver, or, once csi-bridge status shows every node and its drivers again, run csi-bridge "
        f"trust on the hub's host"
    )


def no_place(driver: str, thing: str, why: str) -> CallError:
    """The hub does not know which node has the object of the call. The object may exist all the same."""
    return CallError(f"the hub does not know which edge node of driver {driver} has {thing}: {why}")


def name_elsewhere(driver: str, name: str, node: str, wanted: str) -> CallError:
    """A create call is for one node, and another node has taken its name: an object may exist there."""
    return CallError(
        f"edge node {node} may have carried out {name} of driver {driver} already, and this call is for {wanted}; "
        f"send the call to {node} (with --nodeid or --placement of the proxy driver, or csi-bridge call --node "
        f"{node}), or, if that node will not come back, run csi-bridge forget {node} on the hub's host",
        node=wanted,
    )


def answer_refused(driver: str, name: str, node: str, answer: str, *, look_at: str = "") -> CallError:
    """The hub refuses a node's answer to a create: it is unreadable, or names another node's object or place."""
    return CallError(
        f"edge node {node} answered {name} of driver {driver} with {answer}; the answer is not passed on; look at "
        f"the driver on {look_at or node}"
    )


def not_listed(driver: str, method: str, missing: Mapping[str, str]) -> CallError:
    """A list of all nodes would lack a node's entries. `missing` has the reason of each node."""
    node, *others = sorted(missing)
    further = f" (and those of {first_names(others, _MOST_NODES - 1)})" if others else ""
    name = method.rpartition("/")[2]
    return CallError(
        f"{name} of driver {driver} would lack the entries of edge node {node}: {missing[node]}{further}; "
        f"csi-bridge call --node NODE asks one node, and csi-bridge forget NODE is for a node that is gone for good"
    )


def token_unknown(method: str, node: str = "") -> CallError:
    """The page token is for no list that the hub can go on with: it is too old, or of another hub process or node."""
    whose = f"is for a list of edge node {node}, and another one serves" if node else "is for no list of the hub"
    text = f"this starting_token of {method.rpartition('/')[2]} {whose}; begin again without one"
    return CallError(text, code=Code.ABORTED)


def order_refused(order: str, why: str) -> CallError:
    """The hub refuses an operator's command. No sidecar sees this."""
    return CallError(f"{order}: {why}")


def status_of(error: BaseException | None, origin: Origin) -> Status:
    """The caller's status for an error. `None` is a handler that ended without an answer.

    Any error but a `CallError` is a bug: UNAVAILABLE, with the details in the log only. Sidecars would take UNKNOWN and
    INTERNAL as proof that nothing happened.
    """
    if isinstance(error, CallError):
        return Status(error.code, str(error), origin)
    return Status(Code.UNAVAILABLE, f"an internal error in the {_HOPS[origin]}; its log has the details", origin)


def stopped(origin: Origin) -> Status:
    return Status(Code.UNAVAILABLE, "the call was stopped; a retry is safe", origin)


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as `2026-11-21T09:12:03Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: object) -> float:
    """Seconds since the epoch of a time as Kubernetes writes it; 0 if it is missing or unreadable."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return time.timestamp()


_HOPS = {
    Origin.VENDOR: "driver",
    Origin.EDGE: "edge agent",
    Origin.UNSENT: "edge agent",
    Origin.HUB: "hub",
    Origin.PROXY: "proxy driver",
}
