"""The reference: every command, flag, metric and error as Markdown, written from the code itself (`make reference`)."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_type_hints

import click

from cli.main import cli
from cli.operator_settings import OperatorSettings
from cli.options import HEADINGS, group_of
from common.csi.methods import METHODS
from common.errors import CODES
from common.link_settings import LinkSettings
from common.metrics import CALL_BUCKETS_S, Metrics
from common.settings import Settings, Spec, specs

_HEAD = """\
# Reference

For anyone who needs a flag, a variable, a metric or an error by its name. `make reference` writes this page.

* **Variables.** Each flag has an environment variable, which counts if the flag is not given. An empty variable counts
  as not set. The variable of a repeatable flag holds its values with spaces between them.
* **Values.** A duration is `500ms`, `10s`, `1h30m`, or a number of seconds. A size is `16384`, `64KiB` or `4MiB`.
* **Exit codes.** 2: a flag or variable cannot be used. 1: any other failure.
* **Output.** Commands that print a table or a report print JSON with `-o json`. Its times are in RFC 3339
  (`2026-11-22T03:20:54Z`). In a pipe, each row of a table is one line.
* **Shell completion.** `eval "$(_CSI_BRIDGE_COMPLETE=bash_source csi-bridge)"` in bash. For zsh write `zsh_source`, for
  fish `_CSI_BRIDGE_COMPLETE=fish_source csi-bridge | source`.
"""

_METRICS = """\
## Metrics

A process with `--http` serves them at `/metrics` in Prometheus' format, with the `process_…` metrics of Prometheus' own
client. `/healthz` and `/readyz` answer 200 while the process lives, except `/readyz` of a proxy driver, which answers
503 with the reason until its driver is known. For the state of links see `csi_bridge_connected_nodes` and `csi-bridge
status`.
"""

_ERRORS = """\
## Errors

The caller gets one of these if there is no answer of the vendor's own. The vendor's own codes and messages pass
unchanged. [architecture.md](architecture.md#what-the-caller-is-told) says when each comes.
"""


@dataclass(frozen=True, slots=True)
class _Shared:
    """Flags that several commands take, told once.

    Attributes:
        settings: the class whose fields they are.
        heading: of the section.
        commands: which take them, for the section's first sentence.
    """

    settings: type[Settings]
    heading: str
    commands: str

    @property
    def link(self) -> str:
        """The section, for a command's own."""
        return f"[{self.heading.lower()}](#{self.heading.lower().replace(' ', '-')})"


_SHARED = (
    _Shared(
        LinkSettings, "Flags of every process", "`hub` (in variables HUB), `driver` (DRIVER) and `edge run` (EDGE)"
    ),
    _Shared(
        OperatorSettings,
        "Flags of commands for operators",
        "`call`, `forget`, `nodes`, `status`, `trust` and `volumes` (in variables CALL, FORGET, …)",
    ),
)


def render() -> str:
    """The whole page."""
    shared = [_section(it) for it in _SHARED]
    parts = [_HEAD, "## Commands\n", *_commands("csi-bridge", cli), *shared, _METRICS, _metrics(), _ERRORS, _errors()]
    return "\n".join(parts)


def _commands(path: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _commands(f"{path} {name}", command.commands[name])
        return
    arguments = [
        param.make_metavar(click.Context(command)) for param in command.params if isinstance(param, click.Argument)
    ]
    usage = " ".join([path, *arguments])
    yield f"### `{usage}`\n\n{_paragraphs(command.help or '')}\n"
    settings = _settings_of(command)
    if settings is None:
        return
    shared = next((it for it in _SHARED if issubclass(settings, it.settings)), None)
    told = {spec.name for spec in specs(shared.settings)} if shared is not None else set()
    own = [spec for spec in specs(settings) if spec.name not in told]
    if shared is not None:
        yield f"Also: the {shared.link}.\n"
    yield from _flags(own)


def _section(shared: _Shared) -> str:
    table = "\n".join(_flags(specs(shared.settings)))
    return f"### {shared.heading}\n\nThey belong to {shared.commands}.\n\n{table}"


def _flags(found: Iterable[Spec]) -> Iterator[str]:
    """The table of some settings in the order of `--help`; nothing if there are none."""
    shown = [spec for group in HEADINGS for spec in found if group_of(spec) == group and not spec.hidden]
    if shown:
        rows = [(_flag(spec), _default(spec), f"`{_variable(spec)}`", _meaning(spec)) for spec in shown]
        yield _table(("flag", "default", "variable", "meaning"), rows)


def _variable(spec: Spec) -> str:
    """Its variable; of a shared setting with … for the command."""
    flag = spec.flag.lstrip("-").replace("-", "_").upper()
    return f"CSI_BRIDGE_…_{flag}" if spec.variable == f"CSI_BRIDGE_{flag}" else spec.variable


def _settings_of(command: click.Command) -> type[Settings] | None:
    return get_type_hints(command.callback).get("settings")


def _flag(spec: Spec) -> str:
    value = f"={spec.metavar}" if spec.metavar else ""
    return ", ".join(f"`{flag}{value if flag.startswith('--') else ''}`" for flag in (spec.flag, *spec.aliases))


def _default(spec: Spec) -> str:
    if spec.required:
        return "required"
    return f"`{spec.default}` {spec.unit}".rstrip() if spec.default else "unset"


def _meaning(spec: Spec) -> str:
    return spec.help + (" Repeatable." if spec.repeatable else "")


def _metrics() -> str:
    metrics = Metrics()
    metrics.observe_call("d.example", next(iter(METHODS)), 0, 0.1)  # so that it has a series, whose labels are seen
    rows = []
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        if family.name.startswith("process_"):
            continue
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(
            (f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels) or "none", family.documentation)
        )
    buckets = ", ".join(f"{bound:g}" for bound in CALL_BUCKETS_S)
    return (
        _table(("name", "type", "labels", "meaning"), rows) + f"\nThe histogram's buckets end at {buckets} seconds.\n"
    )


def _errors() -> str:
    rows = [(f"`{kind.__name__}`", code.name, _first_line(kind.__doc__ or "")) for kind, code in CODES.items()]
    return _table(("error", "code", "meaning"), rows)


def _first_line(text: str) -> str:
    return text.strip().partition("\n\n")[0].replace("\n", " ")


def _paragraphs(text: str) -> str:
    """A docstring's text, one line for each paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *([_escaped(cell) for cell in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|---" * len(cells[0]) + "|", *lines[1:]]) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(render())
