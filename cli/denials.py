"""The denials: the nodes and certificates that the hub on this host refuses at an operator's word."""

from collections.abc import Iterator

from cli.hub_state import ask, tell
from cli.operator_options import OperatorSettings
from cli.table import printable, table
from common.pages.hub import DenialStatus
from common.pages.json_form import shown


def show(denials: list[DenialStatus], width: int | None = None) -> Iterator[str]:
    if not denials:
        yield "the hub denies no node and no certificate"
        return
    rows = [(_subject(denial), shown(denial.at), printable(denial.why)) for denial in denials]
    yield from table(("DENIED", "SINCE", "REASON"), rows, width=width)


def run(settings: OperatorSettings, *, as_json: bool) -> None:
    tell(settings, _look, show, (lambda denials: {"denials": denials}) if as_json else None)


def _look(settings: OperatorSettings) -> list[DenialStatus]:
    return ask(settings.hub, "/denials", list[DenialStatus], timeout_s=settings.timeout_s)


def _subject(denial: DenialStatus) -> str:
    return denial.subject if denial.kind == "node" else f"serial={denial.subject.upper()}"
