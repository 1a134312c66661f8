"""A fault point: a named place where a test lets the agent die, to prove that a restart mends whatever that leaves.

`CSI_BRIDGE_FAULT_POINT=stage.before-call` kills the process (SIGKILL) when it gets there first;
`stage.before-call:3` at the third time. Unset, a point costs one comparison.

`POINTS` are all of them: what the disk shows at each. docs/recovery.md has the same table, and what the next life does.
"""

import os
import signal
from collections.abc import Mapping

VARIABLE = "CSI_BRIDGE_FAULT_POINT"

POINTS: Mapping[str, str] = {
    "stage.before-intent": "nothing",
    "stage.after-intent": "a row: staged, perhaps",
    "stage.before-dir": "the row",
    "stage.before-data": "the row and an empty directory",
    "stage.before-rename": "the row and half of `vol_data.json`, under another name",
    "stage.after-data": "the row and `vol_data.json`",
    "stage.after-dir": "the row and the staging directory; a block volume's `vol_data.json`, too",
    "stage.before-call": "the row and all that the driver needs; it was not asked",
    "stage.after-call": "the same; the driver has answered",
    "stage.before-result": "staged, or refused and cleaned up; the row says perhaps",
    "stage.after-result": "what came of it, and a row that says so",
    "stage.before-clean": "the driver refused; the row and the directories made for it",
    "stage.after-target": "the same, without the staging directory",
    "stage.after-data-removed": "the row and an empty directory",
    "publish.before-intent": "the staging",
    "publish.after-intent": "a row: published, perhaps",
    "publish.before-dir": "the row",
    "publish.after-dir": "the row and the directory for the target; a block volume's `vol_data.json`, too",
    "publish.before-data": "the row and the directory for the target, without `vol_data.json`",
    "publish.before-rename": "the row and half of `vol_data.json`, under another name",
    "publish.after-data": "the row and `vol_data.json`",
    "publish.before-call": "the row and all that the driver needs; it was not asked",
    "publish.after-call": "the same; the driver has answered",
    "publish.before-bind": "a block volume is published, and the file that its device is bound to is there",
    "publish.after-bind": "the device is bound to the pod's file",
    "publish.after-link": "the link in the pod's directory leads to the device",
    "publish.after-loop": "a loop device keeps the device from being exchanged",
    "publish.before-ownership": "the volume is mounted; nothing of it belongs to the pod's fsGroup yet",
    "publish.after-ownership": "everything in it belongs to the pod's fsGroup",
    "publish.before-result": "published, or refused and cleaned up; the row says perhaps",
    "publish.after-result": "what came of it, and a row that says so",
    "publish.before-clean": "the driver refused; the row and the directories made for it",
    "publish.after-target": "the same, without the target",
    "publish.after-data-removed": "the row and an empty directory",
    "unpublish.before-intent": "the mount, and a row that says so",
    "unpublish.after-intent": "the mount; the row says perhaps",
    "unpublish.before-loop": "all of a block volume's publication",
    "unpublish.after-loop": "the same, without the loop device",
    "unpublish.after-link": "the same, without the link",
    "unpublish.after-unbind": "the device is bound to the pod's file no more",
    "unpublish.after-map": "only what the driver published",
    "unpublish.before-call": "the mount; the driver was not asked",
    "unpublish.after-call": "the driver has answered; our directories and `vol_data.json`",
    "unpublish.before-clean": "the same, and nothing is mounted",
    "unpublish.after-target": "`vol_data.json`",
    "unpublish.after-data-removed": "an empty directory",
    "unpublish.after-clean": "nothing but the row and, perhaps, the pod's empty directories",
    "unpublish.before-result": "nothing but the row",
    "unpublish.after-result": "nothing",
    "unstage.before-intent": "the staging, and a row that says so",
    "unstage.after-intent": "the staging; the row says perhaps",
    "unstage.before-call": "the same; the driver was not asked",
    "unstage.after-call": "the driver has answered; our directories and `vol_data.json`",
    "unstage.before-clean": "the same, and nothing is mounted",
    "unstage.after-target": "`vol_data.json`",
    "unstage.after-data-removed": "empty directories",
    "unstage.after-clean": "nothing but the row",
    "unstage.before-result": "nothing but the row",
    "unstage.after-result": "nothing",
    "expand.before-intent": "a volume of its old size",
    "expand.after-intent": "the same; the claim is to be told that it is being expanded",
    "expand.before-call": "the same; the driver was not asked",
    "expand.after-call": "the volume may have its new size",
    "expand.before-result": "it has its new size, and no row says so",
    "expand.after-result": "it has its new size, and the row says so",
    "facts.before-claim": "the claim is not told yet",
    "facts.after-claim": "what the claim is to be told is on its way to the disk",
    "stats.before-call": "a published volume; the driver was not asked for its use",
    "stats.after-call": "the same; it has answered",
    "health.before-call": "a published volume; the driver was not asked for its health",
    "health.after-call": "the same; it has answered",
    "leftovers.before-clean": "directories of an earlier time that no row and no pod accounts for",
    "leftovers.after-target": "the same, without the one for the mount",
    "leftovers.after-data-removed": "an empty directory",
}
"""What the disk shows at each point."""

_WANTED, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count) if _count.isdecimal() else 1


def reach(point: str) -> None:
    """The process is at this point, one of `POINTS`; it dies here if a test wants it."""
    global _left  # noqa: PLW0603  # one process, one death
    if point != _WANTED:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
