"""An option: a flag of a command with its variable, type, default and help, declared once.

Rules:
* `option()` declares one. Its default is a text, as an operator writes it: `--help` prints it, and it is read like a
  value that an operator gave.
* A wrong value ends the command with exit code 2 and a message with the variable, the flag, the value and the values
  that are allowed.
* A flag wins over its variable. An empty variable counts as not set (a Helm value left blank).
"""

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import click

from common.errors import SettingsError
from common.parsers import duration, size

S = TypeVar("S")

_SHOWN_CHARS = 100  # an error quotes this much of a wrong value: enough to recognise it, too little to fill a log

# The user and the password in an address, which no error shows.
_CREDENTIALS = re.compile(r"^([a-z]+://)?.*@", re.DOTALL)


class Text(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """The type of an option whose value a function reads (`common.parsers`)."""

    def __init__(self, read: Callable[[str], Any], name: str, *, low: str = "", high: str = "", unit: str = "") -> None:
        self.name = name  # a word for the value in `--help`
        self.unit = unit  # the end of the names of such values (`_s`)
        self._read = read
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._low and not self._read(self._low) <= found <= self._read(self._high):
            self.fail(f"must be at least {self._low} and at most {self._high}", param, ctx)
        return found


def duration_type(low: str = "", high: str = "") -> Text:
    return Text(duration, "DURATION", low=low, high=high, unit="_s")


def size_type(low: str, high: str) -> Text:
    return Text(size, "SIZE", low=low, high=high, unit="_bytes")


class FilePath(click.Path):
    """The type of an option with a path. Whether the file exists is for its user to find out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value or "\0" in value:
            self.fail("must be a path", param, ctx)
        return super().convert(value, param, ctx)


class Option(click.Option):
    """One option. `option()` makes it."""

    def __init__(self, flags: Sequence[str], *, group: str, unit: str, allowed: str, **how: Any) -> None:
        super().__init__(flags, **how)
        # Its heading in `--help`, a key of `cli.command.HEADINGS`.
        self.group = group or ("required" if self.required else "")
        self.unit = unit  # the noun that a number counts, where the type does not say it ("nodes"); may be empty
        self._allowed = allowed

    @property
    def label(self) -> str:
        return f"{self.envvar} or {self.opts[0]}"

    @property
    def default_text(self) -> str:
        default = self.default
        return " ".join(default) if isinstance(default, list) else default if isinstance(default, str) else ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        facts = [
            "required" if self.required else f"default: {self.default_text or 'unset'}",
            f"unit: {self.unit}" if self.unit else "",
            "repeatable" if self.multiple else "",
            f"env: {self.envvar}",
        ]
        return record and (record[0].rstrip(), f"{self.help}  [{'; '.join(filter(None, facts))}]")

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            what = (self.help or "").rstrip(".")
            raise SettingsError(self.label, None, f"required: {what[:1].lower()}{what[1:]}") from None

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if self.multiple:
            return tuple(self._read(text, ctx) for text in value or ())
        return None if value is None else self._read(value, ctx)

    def _read(self, text: str, ctx: click.Context) -> Any:
        if any(len(flag) == 2 for flag in self.opts):  # click reads -v=5 as -v with the value =5
            text = text.removeprefix("=")
        try:
            return self.type.convert(text, self, ctx)
        except click.BadParameter as error:
            raise SettingsError(self.label, _shown(text), self._allowed or error.message) from None


def option(*flags: str, type: Any, group: str = "", unit: str = "", **how: Any) -> Option:  # noqa: A002  # click's word
    """Declare an option: its flags, the first one with its default (`--keepalive=10s`); the rest as for `click.option`.

    Its value is called like its first flag, with the unit of its type: `--keepalive` gives `keepalive_s`.
    """
    metavar, allowed = _words(type)
    first, has_default, text = flags[0].partition("=")
    flags = (first, *flags[1:])
    default: dict[str, Any] = {} if how.get("required") else {"default": None if metavar else "false"}  # of a switch
    if has_default:
        default = {"default": [text] if how.get("multiple") else text}
    if not any(flag.isidentifier() for flag in flags):
        flags = (*flags, flags[0].lstrip("-").replace("-", "_") + getattr(type, "unit", ""))
    return Option(flags, type=type, metavar=metavar, allowed=allowed, group=group, unit=unit, **default, **how)


def _words(type_: Any) -> tuple[str, str]:
    match type_:
        case click.Choice():
            return "|".join(type_.choices), f"must be one of {', '.join(type_.choices)}"
        case click.IntRange():
            return "N", f"must be a whole number from {type_.min} to {type_.max}"
        case click.Path():
            return "PATH", ""
    return ("", "must be true or false") if type_ is click.BOOL else (type_.name, "")


def _shown(text: str) -> str:
    text = _CREDENTIALS.sub(r"\1…@", text)
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    return text if text.isprintable() and " " not in text else json.dumps(text)


def of_command(name: str, *declared: Option) -> list[Option]:
    """The options with the variables of a command, unless they have their own: `HUB` gives `CSI_BRIDGE_HUB_LISTEN`."""
    own = [copy.copy(one) for one in declared]
    for one in own:
        one.envvar = one.envvar or f"CSI_BRIDGE_{name}_{one.opts[0].lstrip('-').replace('-', '_').upper()}"
    return own


class Options(Generic[S]):
    """The options of one command, from whose values it makes its settings."""

    def __init__(self, settings: type[S], command: str, *declared: Option) -> None:
        self.settings = settings
        self.all = of_command(command, *declared)

    def make(self, values: dict[str, Any]) -> S:
        names = [field.name for field in dataclasses.fields(self.settings)]  # type: ignore[arg-type]  # a dataclass
        try:
            return self.settings(**{name: values.pop(name) for name in names})
        except SettingsError as error:
            raise self.named(error) from error.__cause__

    def read(self, texts: Mapping[str, str | Sequence[str]]) -> S:
        # Flags and variables of this process do not count here.
        ctx = click.Context(click.Command(None))
        values = {}
        for one in self.all:
            given: Any = texts.get(one.name)
            given = one.get_default(ctx) if given is None else given
            if not one.multiple and isinstance(given, list):
                given = given[0]
            if one.multiple and isinstance(given, str):
                given = [given]
            values[one.name] = one.process_value(ctx, given)
        return self.make(values)

    def default(self, name: str) -> Any:
        (found,) = (one for one in self.all if one.name == name)
        ctx = click.Context(click.Command(None))
        return found.process_value(ctx, found.get_default(ctx))

    def named(self, error: SettingsError) -> SettingsError:
        # A part of the process may have raised it with the flag alone.
        found = next((one for one in self.all if one.opts[0] == error.variable), None)
        return error if found is None else SettingsError(found.label, error.value, error.why)
