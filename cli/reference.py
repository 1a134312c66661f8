"""The reference: every command, flag, metric and error as Markdown, written from the code itself (`make reference`)."""

import sys
from collections.abc import Iterable, Iterator
from typing import get_type_hints

import click

from cli.main import cli
from common.csi.methods import METHODS
from common.errors import CODES
from common.metrics import CALL_BUCKETS_S, Metrics
from common.settings import Settings, Spec, specs

_HEAD = """\
# Reference

Written by `make reference` from the code; a test fails when it is not of this version.

Each flag has an environment variable, which counts if the flag is not given; an empty one counts as not set. That of a
repeatable flag holds its values with spaces between them. A duration is `500ms`, `10s`, `1h30m`, or a number of
seconds; a size is `16384`, `64KiB`, `4MiB`. Exit code 2 is a flag or setting that cannot be used, 1 any other failure.
"""

_METRICS = """\
## Metrics

At `/metrics` of a process's `--http`, in Prometheus' format, beside `process_…` of Prometheus' own client. Beside it,
`/healthz` and `/readyz` answer 200 as long as the process lives; but `/readyz` of a proxy driver whose driver is not
known yet answers 503 with the reason. Whether a link is up `csi_bridge_connected_nodes` and `csi-bridge status` tell.
"""

_ERRORS = """\
## Errors

What a caller is told when there is no answer of the vendor's own; the vendor's own codes and messages pass unchanged.
[architecture.md](architecture.md#what-the-caller-is-told) says when.
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD, "## Commands\n", *_commands("csi-bridge", cli), _METRICS, _metrics(), _ERRORS, _errors()]
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
    if (settings := _settings_of(command)) is not None:
        rows = [(_flag(spec), _default(spec), f"`{spec.variable}`", _meaning(spec)) for spec in specs(settings)]
        yield _table(("flag", "default", "variable", "meaning"), rows)


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
