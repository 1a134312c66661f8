"""The reference page: every command, flag and metric in reference.md, from the code (`make reference`)."""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

import click

from cli.command import HEADINGS, Command
from cli.main import cli
from cli.operators.operator_options import OPERATOR_OPTIONS
from cli.options import Option
from cli.process_options import PROCESS_OPTIONS
from common.csi.methods import METHODS
from common.observe.exposition import registry_of
from common.observe.metrics import CALL_BUCKETS_S, Metrics, VolumeStats
from docs.pages_schema import PAGES

# The flags that several commands have, by the heading of their section.
_SHARED = {
    "Flags of every process": PROCESS_OPTIONS,
    "Flags of commands that ask the hub": OPERATOR_OPTIONS,
}

_PLACE = re.compile(r"(<!-- (commands|pages|metrics) -->\n).*?(<!-- end -->\n)", re.DOTALL)  # of a part in the page


def render(page: str) -> str:
    """The page with its parts as the code has them."""
    parts = {"commands": _commands, "pages": _pages, "metrics": _metrics}
    return _PLACE.sub(lambda place: place[1] + parts[place[2]]() + place[3], page)


def _commands() -> str:
    found = dict(commands("", cli))
    sections = [_command(path, command) for path, command in found.items()]
    return "\n".join([*sections, *(_shared(heading, options, found) for heading, options in _SHARED.items())])


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in sorted(command.commands):
        yield from commands(f"{path} {name}".lstrip(), command.commands[name])


def _command(path: str, command: click.Command) -> str:
    arguments = [
        param.make_metavar(click.Context(command)) for param in command.params if isinstance(param, click.Argument)
    ]
    shared = {option.name for options in _SHARED.values() if _has(command, options) for option in options}
    own = [option for option in _options(command) if option.name not in shared and option.name != "output"]
    usage = " ".join(["csi-bridge", path, *arguments])
    return "\n".join([f"### `{usage}`\n\n{_summary(command.help or '')}\n", *_flags(own)])


def _shared(heading: str, options: Collection[Option], found: Mapping[str, click.Command]) -> str:
    names = [f"`{path}`" for path, command in found.items() if _has(command, options)]
    table = "\n".join(_flags(options))
    return f"### {heading}\n\nThey belong to {', '.join(names[:-1])} and {names[-1]}.\n\n{table}"


def _options(command: click.Command) -> list[Option]:
    return command.options if isinstance(command, Command) else []


def _has(command: click.Command, options: Collection[Option]) -> bool:
    return {option.name for option in options} <= {option.name for option in _options(command)}


def _flags(options: Collection[Option]) -> Iterator[str]:
    shown = [option for group in HEADINGS for option in options if option.group == group]
    if shown:
        yield _table(("flag", "default", "meaning"), [(_flag(it), _default(it), _meaning(it)) for it in shown])


def _flag(option: Option) -> str:
    value = f"={option.metavar}" if option.metavar else ""
    return ", ".join(f"`{flag}{value if flag.startswith('--') else ''}`" for flag in option.opts)


def _default(option: Option) -> str:
    if option.required:
        return "required"
    return f"`{option.default_text}` {option.unit}".rstrip() if option.default_text else "unset"


def _meaning(option: Option) -> str:
    return (option.help or "") + (" Repeatable." if option.multiple else "")


def _metrics() -> str:
    metrics = Metrics()
    metrics.find("d.example", next(iter(METHODS)), 0)  # labels are seen only once there is a series
    metrics.show_election("d.example", lambda: 1, lambda: True)
    metrics.oldest_calls = lambda: [("n1", "d.example", next(iter(METHODS)), 60)]
    metrics.claims = lambda: {("default", "web"): VolumeStats(capacity_bytes=1, abnormal=False)}
    rows = []
    for family in sorted(registry_of(metrics).collect(), key=lambda family: family.name):
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


def _pages() -> str:
    kinds = {page: f"a list of `{page.kind.__name__}`" if page.is_list else f"`{page.kind.__name__}`" for page in PAGES}
    rows = [(page.server, f"`{page.path}`", kind) for page, kind in kinds.items()]
    return _table(("process", "path", "JSON"), rows)


def _summary(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *([_escaped(cell) for cell in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|---" * len(cells[0]) + "|", *lines[1:]]) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(render(sys.stdin.read()))
