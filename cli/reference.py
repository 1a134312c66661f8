"""The reference page: every command, flag and metric as Markdown, made from the code (`make reference`)."""

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
from common.pages.schema import PAGES

_HEAD = """\
# Reference

For anyone who needs a flag, a variable or a metric by its name. `make reference` writes this page. The codes that a
caller gets are in [architecture.md](architecture.md#what-the-caller-is-told). `--help` of a command says more about it.

* **Shared flags** stand once, after the commands: those [of every process](#flags-of-every-process) and those [of
  commands that ask the hub](#flags-of-commands-that-ask-the-hub).
* **Variables.** Each flag has one, with the command's name: `--why` of `fence` is `CSI_BRIDGE_FENCE_WHY`, `--wait` of
  `edge volumes` is `CSI_BRIDGE_EDGE_VOLUMES_WAIT`. Those of `edge run` and `edge join` begin with `CSI_BRIDGE_EDGE_`.
  `CSI_BRIDGE_HUB` is the hub's socket for all commands that ask it. A flag wins over its variable. An empty variable
  counts as not set. The variable of a repeatable flag holds its values with spaces between them.
* **Values.** A duration is `500ms`, `10s`, `1h30m`, or a number of seconds. A size is `16384`, `64KiB` or `4MiB`.
* **Exit codes.** 2: a flag or variable cannot be used. 1: any other failure.
* **Output.** Commands that print a table, a report or facts print JSON with `--output=json` (`-o json`). Its times are
  in RFC 3339 (`2026-11-22T03:20:54Z`). In a pipe, each row of a table is one line.
* **Shell completion.** `eval "$(_CSI_BRIDGE_COMPLETE=bash_source csi-bridge)"` in bash. For zsh write `zsh_source`, for
  fish `_CSI_BRIDGE_COMPLETE=fish_source csi-bridge | source`.
"""

_METRICS = """\
## Metrics

A process with `--http` serves them at `/metrics` in Prometheus' format, with the `process_…` metrics of Prometheus' own
client. `/healthz` and `/readyz` answer 200 while the process lives. `/readyz` answers 503 with the reason while a proxy
driver does not know its driver, and until a hub listens. A hub's `/readyz/active` answers 200 while it leads, and 503
with the reason while it is a standby. For the state of links see
`csi_bridge_connected_nodes` and `csi-bridge status`. The `kubelet_volume_stats_…` are an agent's on a node without a
kubelet: [usage for dashboards and alerts](edge-without-kubelet.md#usage-for-dashboards-and-alerts).
"""

# The flags that several commands have, by the heading of their section.
_SHARED = {
    "Flags of every process": PROCESS_OPTIONS,
    "Flags of commands that ask the hub": OPERATOR_OPTIONS,
}

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
    found = dict(commands("", cli))
    sections = [_command(path, command) for path, command in found.items()]
    shared = [_shared(heading, options, found) for heading, options in _SHARED.items()]
    return "\n".join([_HEAD, "## Commands\n", *sections, *shared, _PAGES, _pages(), _METRICS, _metrics()])


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
    sys.stdout.write(render())
