"""The reference page: every command, flag, metric and error as Markdown, made from the code (`make reference`)."""

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import click

from cli.command import HEADINGS, Command
from cli.main import cli
from cli.operator_options import OPERATOR_OPTIONS
from cli.options import Option, of_command
from cli.process_options import PROCESS_OPTIONS
from common.csi.methods import METHODS
from common.errors import CODES
from common.exposition import registry_of
from common.metrics import CALL_BUCKETS_S, Metrics
from common.pages.schema import PAGES
from edge.node_requests import VolumeStats

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
status`. The `kubelet_volume_stats_…` are an agent's on a node without a kubelet: [usage for dashboards and
alerts](edge-without-kubelet.md#usage-for-dashboards-and-alerts).
"""

_ERRORS = """\
## Errors

The caller gets one of these if there is no answer of the vendor's own. The vendor's own codes and messages pass
unchanged. [architecture.md](architecture.md#what-the-caller-is-told) says when each comes.
"""


@dataclass(frozen=True, slots=True)
class _Shared:
    """A section with the flags that several commands share.

    Attributes:
        options: the flags.
        heading: the heading of the section.
        commands: the commands, for the section's first sentence.
    """

    options: tuple[Option, ...]
    heading: str
    commands: str

    @property
    def link(self) -> str:
        """A link to the section, for the section of a command."""
        return f"[{self.heading.lower()}](#{self.heading.lower().replace(' ', '-')})"


_SHARED = (
    _Shared(
        PROCESS_OPTIONS,
        "Flags of every process",
        "`hub` (in variables HUB), `driver` (DRIVER) and `edge run` (EDGE)",
    ),
    _Shared(
        OPERATOR_OPTIONS,
        "Flags of commands for operators",
        "`call`, `facts`, `forget`, `nodes`, `status`, `trust` and `volumes` (in variables CALL, FACTS, …)",
    ),
)


_PAGES = """\
## State as JSON

The hub and the agent show their state as JSON over HTTP on their UNIX sockets: the hub on its `--uds`, the agent on its
`--status`. Neither shows it on the network. [pages.schema.json](pages.schema.json) describes every field. Times are in
RFC 3339. A later version may add fields.

```console
$ curl --unix-socket /var/lib/kubeedge/kubeedge.sock http://localhost/nodes
```
"""


def render() -> str:
    """The whole page."""
    shared = [_section(it) for it in _SHARED]
    tables = [_PAGES, _pages(), _METRICS, _metrics(), _ERRORS, _errors()]
    return "\n".join([_HEAD, "## Commands\n", *_commands("csi-bridge", cli), *shared, *tables])


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
    if not isinstance(command, Command):
        return
    own = {option.name: option for option in command.options}
    for shared in _SHARED:
        names = {option.name for option in shared.options}
        if names <= own.keys():
            yield f"Also: the {shared.link}.\n"
            own = {name: option for name, option in own.items() if name not in names}
    yield from _flags(own.values())


def _section(shared: _Shared) -> str:
    table = "\n".join(_flags(of_command("…", *shared.options)))
    return f"### {shared.heading}\n\nThey belong to {shared.commands}.\n\n{table}"


def _flags(options: Collection[Option]) -> Iterator[str]:
    """The table of some options in the order of `--help`; nothing if there are none."""
    shown = [option for group in HEADINGS for option in options if option.group == group and not option.hidden]
    if shown:
        rows = [(_flag(option), _default(option), f"`{option.envvar}`", _meaning(option)) for option in shown]
        yield _table(("flag", "default", "variable", "meaning"), rows)


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
    metrics.observe_call("d.example", next(iter(METHODS)), 0, 0.1)  # labels are seen only once there is a series
    metrics.show_election("d.example", lambda: 1, lambda: True)
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
