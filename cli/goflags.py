"""A Go flag: how Go's `flag` package writes what click writes with two dashes and no boolean value.

`csi-bridge driver` stands in for KubeEdge's csidriver, which is started with `-drivername=x`, `-v 5` or `--v=5`.
"""

from collections.abc import Collection, Sequence

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go's strconv.ParseBool takes."""


def from_go(argv: Sequence[str], *, names: Collection[str], switches: Collection[str] = ()) -> list[str]:
    """The arguments with each known flag written for click.

    `-name=value`, `-name value`, `--name=value` and `--name value` become `--name=value`; of a switch, `-name` and
    `-name=true` become `--name`, and `-name=false` goes. As in Go, an argument that follows a flag is its value
    whatever it looks like, and flags end at `--` or at the first argument that is none. Everything else stays as it
    is, so that click reports what it does not know.

    Args:
        argv: the arguments after the command's name.
        names: flags that take a value, without dashes.
        switches: flags that take none, without dashes.
    """
    written: list[str] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or argument in {"-", "--"}:
            return [*written, argument, *rest]
        if argument.startswith("---"):
            written.append(argument)
        elif name in switches:
            written += _switch(argument, name, value) if equals else [f"--{name}"]
        elif name in names and equals:
            written.append(f"--{name}={value}")
        elif name in names:
            written.append(f"--{name}={rest.pop(0)}" if rest else f"--{name}")
        else:
            written.append(argument)
    return written


def _switch(argument: str, name: str, value: str) -> list[str]:
    if value in _FALSE:
        return []
    return [f"--{name}" if value in _TRUE else argument]
