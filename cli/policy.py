"""The command `policy`: shows the verdicts about a node, of the hub on this host or of a policy file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from cli.hub_state import ask, tell
from cli.operator_options import OperatorSettings
from cli.table import printable, say, table
from cloud.trust.policy_text import MOST_BYTES, read_policy
from common.pages.hub import PolicyVerdict
from common.pages.json_form import plain


def show(verdicts: list[PolicyVerdict], width: int | None = None) -> Iterator[str]:
    """The verdicts as a table for people."""
    if not verdicts:
        yield "the node has reported no driver, and no rule names one for it"
        return
    rows = [
        (
            verdict.driver,
            "allowed" if verdict.allowed else "DENIED",
            "yes" if verdict.reported else "no",
            _shown(verdict.topology),
            ", ".join(verdict.proxies) or "-",
            verdict.why,
        )
        for verdict in verdicts
    ]
    yield from table(("DRIVER", "VERDICT", "REPORTED", "TOPOLOGY", "CALLED BY", "WHY"), rows, width=width)


def run(settings: OperatorSettings, *, node: str, driver: str, as_json: bool) -> int:
    """Ask the hub. Returns the exit code: 0, or 1 with the reason on stderr if it does not answer."""

    def look(settings: OperatorSettings) -> list[PolicyVerdict]:
        path = f"/policy/{quote(f'{node}/{driver}' if driver else node, safe='')}"
        return ask(settings.hub, path, list[PolicyVerdict], timeout_s=settings.timeout_s)

    return tell(settings, look, show=show, as_json=(lambda state: {"policy": plain(state)}) if as_json else None)


def try_file(path: Path, *, node: str, driver: str) -> int:
    """Ask a file that no hub uses yet. Returns the exit code: 0, or 1 if the policy denies it or cannot be used."""
    try:
        with path.open("rb") as file:
            policy = read_policy(file.read(MOST_BYTES + 1), source=str(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        say(f"csi-bridge: the policy {path} cannot be used: {why}", err=True)
        return 1
    asked = [driver] if driver else sorted(set(policy.drivers_of(node)))
    verdicts = [(each, policy.allows_report(node, each, {})) for each in asked]
    for each, verdict in verdicts:
        say(printable(f"{each}: {'allowed' if verdict.allowed else 'DENIED'}: {verdict.why}"))
    if not verdicts:
        say("no rule names a driver for this node" if policy.nodes is not None else "every driver is allowed")
    return 0 if all(verdict.allowed for _, verdict in verdicts) else 1


def _shown(topology: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(topology.items())) or "-"
