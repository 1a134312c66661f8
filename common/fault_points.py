"""Fault points: named places at which a test kills the agent or the hub, to prove that a restart repairs their state.

`CSI_BRIDGE_FAULT_POINT=stage.before-call` kills the process (SIGKILL) when it first reaches that point;
`stage.before-call:3` at the third time. Without the variable, a point costs one comparison.

`POINTS` lists all of them with the state on the disk; "the same" refers to the point above.
"""

import os
import signal
from collections.abc import Mapping

VARIABLE = "CSI_BRIDGE_FAULT_POINT"

POINTS: Mapping[str, str] = {
    "stage.before-intent": "nothing",
    "stage.after-intent": "an uncertain row",
    "stage.before-dir": "the same",
    "stage.before-data": "row, empty directory",
    "stage.before-rename": "row, part of `vol_data.json` under another name",
    "stage.after-data": "row, `vol_data.json`",
    "stage.after-dir": "row, staging directory; a block volume's `vol_data.json`",
    "stage.before-call": "the same; the driver was not asked",
    "stage.after-call": "the same; the driver has answered",
    "stage.before-result": "staged, or refused and cleaned up; uncertain row",
    "stage.after-result": "the result, and a row with it",
    "stage.before-clean": "refused; row, directories",
    "stage.after-target": "the same, without the staging directory",
    "stage.after-data-removed": "row, empty directory",
    "publish.before-intent": "the staging",
    "publish.after-intent": "an uncertain row",
    "publish.before-dir": "the same",
    "publish.after-dir": "row, the target's directory; a block volume's `vol_data.json`",
    "publish.before-data": "row, the target's directory",
    "publish.before-rename": "row, part of `vol_data.json` under another name",
    "publish.after-data": "row, `vol_data.json`",
    "publish.before-call": "the same; the driver was not asked",
    "publish.after-call": "the same; the driver has answered",
    "publish.before-bind": "a published block volume, and the file to bind its device to",
    "publish.after-bind": "the device, bound to the pod's file",
    "publish.after-link": "also the link in the pod's directory",
    "publish.after-loop": "also the loop device, which holds the device open",
    "format.before-intent": "a published block device, which is blank and is to have a file system for a guest",
    "format.after-intent": "the same; the row has the file system's UUID",
    "format.after-make": "the file system; the row says that it is being made",
    "handover.before-intent": "a published block device with a file system; the runtime knows nothing",
    "handover.after-intent": "the same; the row says that a guest may use it",
    "handover.after-guard": "also the guard at the target",
    "handover.after-info": "also the mount info: a guest may use the device",
    "publish.after-cdi": "also the file for container engines, if the volume has one; uncertain row",
    "publish.before-ownership": "the mounted volume, before the pod's fsGroup is applied",
    "publish.after-ownership": "the mounted volume with the group",
    "publish.before-result": "published, or refused and cleaned up; uncertain row",
    "publish.after-result": "the result, and a row with it",
    "publish.before-clean": "refused; row, directories",
    "publish.after-target": "the same, without the target",
    "publish.after-data-removed": "row, empty directory",
    "unpublish.before-intent": "the mount, a done row",
    "unpublish.after-intent": "the mount, an uncertain row",
    "unpublish.after-cdi": "the mount, and no file for container engines",
    "unpublish.before-info": "all of a deferred volume's publication",
    "unpublish.after-info": "the same, without the mount info",
    "unpublish.after-guard": "the same, without the guard; its directories",
    "unpublish.before-loop": "all of a block volume's publication",
    "unpublish.after-loop": "the same, without the loop device",
    "unpublish.after-link": "the same, without the link",
    "unpublish.after-unbind": "the same, without the bind",
    "unpublish.after-map": "only the driver's publication",
    "unpublish.before-call": "the mount; the driver was not asked",
    "unpublish.after-call": "directories, `vol_data.json`; the driver has answered",
    "unpublish.before-clean": "the same; nothing is mounted",
    "unpublish.after-target": "`vol_data.json`",
    "unpublish.after-data-removed": "an empty directory",
    "unpublish.after-clean": "the row, perhaps the pod's empty directories",
    "unpublish.before-result": "the row",
    "unpublish.after-result": "nothing",
    "unstage.before-intent": "the staging, a done row",
    "unstage.after-intent": "the staging, an uncertain row",
    "unstage.before-call": "the same; the driver was not asked",
    "unstage.after-call": "directories, `vol_data.json`; the driver has answered",
    "unstage.before-clean": "the same; nothing is mounted",
    "unstage.after-target": "`vol_data.json`",
    "unstage.after-data-removed": "empty directories",
    "unstage.after-clean": "the row",
    "unstage.before-result": "the row",
    "unstage.after-result": "nothing",
    "expand.before-intent": "the volume in its old size",
    "expand.after-intent": "the same; the claim is to hear that it is being expanded",
    "expand.before-call": "the same; the driver was not asked",
    "expand.after-call": "perhaps the new size",
    "expand.before-result": "the new size, no row of it",
    "expand.after-result": "the new size, a row of it",
    "facts.before-claim": "no report to the claim",
    "facts.after-claim": "the report to the claim, on its way to the disk",
    "stats.before-call": "a published volume; the driver was not asked for its use",
    "stats.after-call": "the same; the driver has answered",
    "health.before-call": "a published volume; the driver was not asked for its health",
    "health.after-call": "the same; the driver has answered",
    "leftovers.before-clean": "directories without a row and a pod",
    "leftovers.after-target": "the same, without the mount's directory",
    "leftovers.after-data-removed": "an empty directory",
    "identity.before-request": "the node's identity, or none before its join",
    "identity.after-request": "also the next key and its request; the hub was not asked",
    "identity.before-store": "the same; the hub has answered",
    "identity.after-ca": "also the new `ca.crt`",
    "identity.after-settings": "also the new `joined.json`",
    "identity.before-rename": "also a part of `node.pem` under another name",
    "identity.after-certificate": "the new identity, and the request that led to it",
    "identity.after-store": "the new identity; its key was not used",
    "enrolment.before-issue": "at the hub: nothing of the certificate",
    "enrolment.after-issue": "at the hub: the certificate, and the use of the token; the answer was not sent",
    "enrolment.after-answer": "the same; the answer may have been sent",
    "generations.before-use": "at the hub: the certificate is pending; its key has authenticated",
    "generations.after-use": "the same, or the certificate is current, or earlier ones are void too",
}
"""The state on the disk at each point."""

_WANTED, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count) if _count.isdecimal() else 1


def reach(point: str) -> None:
    """Kill the process if a test has chosen this point, one of `POINTS`."""
    global _left  # noqa: PLW0603  # one process, one death
    if point != _WANTED:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
