"""The command `forget --abandon-volumes`: releases the own storage of a node that is gone for good.

Rules:

* Without `--yes` nothing is changed: the command lists what would go.
* With it the command repeats its order until nothing is left. It keeps nothing: after it was cut off, the same command
  goes on.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from cli.operator_options import OperatorSettings
from cli.order import give_order
from cli.table import printable, say, table, terminal_width
from common.errors import BridgeError
from common.operator_orders import GOES, KEPT, RELEASED, Abandon, Abandoned

_PAUSE_S: Final = 5.0
"""Between two orders: Kubernetes ends pods and claims in the meantime."""

_PATIENCE_S: Final = 180.0
"""The command gives up when nothing has changed for so long. Kubernetes ends the pods of a gone Node in a minute."""

_WORDS: Final = {GOES: "goes", RELEASED: "released", KEPT: "stays"}


def show(state: Abandoned, width: int | None = None) -> Iterator[str]:
    """An answer as lines for people."""
    if state.found:
        rows = [(_WORDS.get(it.fate, it.fate), it.kind, it.name, it.why or "-") for it in state.found]
        yield from table(("STATE", "KIND", "NAME", "WHY"), rows, width=width)
    yield from map(printable, state.said)


def run(settings: OperatorSettings, *, node: str, sure: bool) -> int:
    """List the objects, or release them. Returns the exit code: 0, or 1 with the reason on standard error."""
    try:
        if sure:
            return _release(settings, node)
        _say(_order(settings, node, sure=False))
    except BridgeError as error:
        say(f"csi-bridge: {error}", err=True)
        return 1
    return 0


def _release(settings: OperatorSettings, node: str) -> int:
    shown, changed_at = set[tuple[str, str, str, str]](), time.monotonic()
    while True:
        state = _order(settings, node, sure=True)
        rows = {(it.fate, it.kind, it.name, it.why) for it in state.found}
        if state.done:
            _say(state)
            return 0
        if rows != shown:
            for each in state.found:
                if (each.fate, each.kind, each.name, each.why) not in shown:
                    say(f"{_WORDS.get(each.fate, each.fate)}: {each.kind} {each.name}{each.why and f' ({each.why})'}")
            shown, changed_at = rows, time.monotonic()
        elif time.monotonic() - changed_at > _PATIENCE_S:
            raise BridgeError(
                f"nothing has changed for {_PATIENCE_S:g} s; see what holds the objects above (kubectl describe), and "
                f"run the command again to go on"
            )
        time.sleep(_PAUSE_S)


def _order(settings: OperatorSettings, node: str, *, sure: bool) -> Abandoned:
    async def give() -> Abandoned:
        async with asyncio.timeout(settings.timeout_s):
            return await give_order(settings, Abandon(node=node, sure=sure), Abandoned)

    try:
        return asyncio.run(give())
    except TimeoutError:
        raise BridgeError(f"the hub at {settings.hub} has not answered in {settings.timeout_s:g} s") from None


def _say(state: Abandoned) -> None:
    for line in show(state, terminal_width()):
        say(line)
