"""The command `forget --abandon-volumes`: releases the own storage of a node that is gone for good.

Rules:

* The hub names the node's own storage. The command deletes it, with the operator's kubeconfig: the hub may not.
* Without `--yes` nothing is changed: the command lists the objects that would go.
* It first checks that the kubeconfig's user may do all that: a pass that ends in the middle leaves a riddle.
* With it the command makes one pass after another until nothing is left. Then it lets the hub forget the node. It keeps
  nothing: after it was cut off, the same command goes on.
* Before each pass the command asks the hub again. It stops if the node is no longer denied, or is connected.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from cli.operators.operator_options import OperatorSettings
from cli.operators.order import give_order
from cli.operators.table import say, table
from common.errors import BridgeError, SettingsError
from common.operator_orders import Abandon, Done, Forget, NodeStorage, OwnStorage

if TYPE_CHECKING:
    from cloud.operators.cluster_release import ClusterRelease, Released

_PAUSE_S: Final = 5.0  # between two passes: Kubernetes ends pods and claims in the meantime

# The command gives up when nothing has changed for so long. Kubernetes ends the pods of a gone Node in a minute.
_PATIENCE_S: Final = 180.0


class Progress:
    """The progress of a release."""

    def __init__(self, now: float) -> None:
        self._shown = frozenset["Released"]()
        self._changed_at = now

    def note(self, found: Sequence["Released"], now: float) -> list[str]:
        """Note the result of a pass. Returns a line for each object that is new, or has changed."""
        new = [it for it in found if it not in self._shown]
        if frozenset(found) != self._shown:
            self._shown = frozenset(found)
            self._changed_at = now
        elif now - self._changed_at > _PATIENCE_S:
            raise BridgeError(
                f"nothing has changed for {_PATIENCE_S:g} s; see what holds the objects above (kubectl describe), and "
                f"run the command again to go on"
            )
        return [f"{it.fate}: {it.kind} {it.name}{it.why and f' ({it.why})'}" for it in new]


def run(settings: OperatorSettings, *, node: str, kubeconfig: str, sure: bool) -> None:
    with _readable(kubeconfig) as path:
        asyncio.run(_run(settings, node, path, sure=sure))


async def _run(settings: OperatorSettings, node: str, kubeconfig: str, *, sure: bool) -> None:
    async with _release(kubeconfig, node) as release:
        found = await release.run(await give_order(settings, OwnStorage(node=node), NodeStorage), is_dry=True)
        await release.check(found)
        if sure:
            await _to_the_end(settings, node, release)
            return
    if found:
        rows = [(it.fate, it.kind, it.name, it.why or "-") for it in found]
        for line in table(("STATE", "KIND", "NAME", "WHY"), rows):
            say(line)
        say("nothing is changed yet; --yes releases what goes")
    else:
        say("it has nothing to release; --yes lets the hub forget it")


async def _to_the_end(settings: OperatorSettings, node: str, release: "ClusterRelease") -> None:
    from cloud.operators.cluster_release import KEPT

    progress = Progress(time.monotonic())
    is_begun = False
    while True:
        storage = await give_order(settings, OwnStorage(node=node), NodeStorage)
        found = await release.run(storage, is_dry=False)
        for line in progress.note(found, time.monotonic()):
            say(line)
        if not is_begun:
            await give_order(settings, Abandon(node=node), Done)
            is_begun = True
        if all(it.fate == KEPT for it in found):
            break
        await asyncio.sleep(_PAUSE_S)
    if storage.is_known:
        await give_order(settings, Forget(node=node), Done)
        await give_order(settings, Abandon(node=node), Done)  # the hub gives up what the node had
    say(f"edge node {node} is abandoned, and stays denied")


@contextmanager
def _readable(kubeconfig: str) -> Iterator[str]:
    # a path that can be read more than once: standard input has a copy in memory, on no disk
    if kubeconfig != "-":
        yield kubeconfig
        return
    with os.fdopen(os.memfd_create("kubeconfig"), "wb") as copy:
        copy.write(sys.stdin.buffer.read())
        copy.flush()
        yield f"/proc/self/fd/{copy.fileno()}"


@asynccontextmanager
async def _release(kubeconfig: str, node: str) -> AsyncIterator["ClusterRelease"]:
    try:  # here, because the library is large, and is missing where nobody needs it
        from cloud.kube.client import connect
        from cloud.operators.cluster_release import ClusterRelease
    except ModuleNotFoundError as error:
        why = f"needs the package {error.name}: install csi-bridge[cloud]"
        raise SettingsError("--kubeconfig", kubeconfig, why) from error
    async with connect(kubeconfig) as api:
        yield ClusterRelease(api, node)
