"""A small CSI client of the tests' own: what livenessprobe and health-monitor ask, and what a test asks by hand.

These two sidecars are not on the module proxy. This client makes their calls with their limits; see
docs/csi-contract.md#probe-speaks-for-the-proxy-driver-alone and docs/csi-contract.md#sidecars-read-capabilities-once.
"""

import time
from pathlib import Path

from common.status import Code
from tests.kit.sidecar import Outcome, Sidecar

PROBE_TIMEOUT_S = 3.0  # livenessprobe's ``--probe-timeout``: for the connection and the call together

_DIAL_TIMEOUT_S = 15.0  # external-health-monitor's patience with its connection and its first Probe

SEQUENCE_TIMEOUT_S = 1.0  # external-health-monitor's context for all of its Identity and capability calls together

_ROUNDS = 3
"""Of a check: a busy machine can stall for longer than a limit. The kubelet, too, acts on the third failure only."""

_SEQUENCE = ("GetPluginInfo", "GetPluginCapabilities", *["ControllerGetCapabilities"] * 3)


def probe(socket: Path) -> Outcome:
    """What livenessprobe does at each of the kubelet's checks: a new connection and one Probe, within 3 s."""
    with Sidecar(socket, patient=True) as sidecar:
        return sidecar.call("Probe", timeout_s=PROBE_TIMEOUT_S)


def is_ready(outcome: Outcome) -> bool:
    """Whether a Probe said so. ``ready`` unset counts as ready (CSI spec, ProbeResponse)."""
    return outcome.ok and (outcome.answer.ready.value or not outcome.answer.HasField("ready"))


def identify(socket: Path) -> list[Outcome]:
    """What external-health-monitor does at its start: a Probe, then five calls in a context of one second."""
    with Sidecar(socket, patient=True) as sidecar:
        outcomes = [sidecar.call("Probe", timeout_s=_DIAL_TIMEOUT_S)]
        deadline = time.monotonic() + SEQUENCE_TIMEOUT_S
        for method in _SEQUENCE:
            left_s = max(0.001, deadline - time.monotonic())
            outcomes.append(sidecar.call(method, timeout_s=left_s))
    return outcomes


def check(socket: Path) -> list[Outcome]:
    """What both ask in one round: `probe`, then `identify`. A round of which only the time ran out is repeated."""
    for _ in range(_ROUNDS):
        outcomes = [probe(socket), *identify(socket)]
        if {outcome.code for outcome in outcomes} - {Code.OK} != {Code.DEADLINE_EXCEEDED}:
            break
    return outcomes


def vendor_answers(socket: Path) -> bool:
    """Whether a call that no cache answers comes back with a word of the vendor's own."""
    with Sidecar(socket, patient=True) as sidecar:
        # Without a volume id every driver refuses it (CSI spec); the bridge itself would say one of the other two.
        outcome = sidecar.call("ValidateVolumeCapabilities")
    return outcome.code not in {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}


def volume_ids(socket: Path) -> list[str]:
    """The volumes that a driver lists, on its own socket or through the bridge, sorted."""
    with Sidecar(socket, patient=True) as sidecar:
        outcome = sidecar.call("ListVolumes")
    assert outcome.ok, outcome.refusal
    return sorted(entry.volume.volume_id for entry in outcome.answer.entries)
