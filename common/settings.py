"""A setting: one value that an operator may choose, with its flag, its variable, its parser and its default.

Rules:
* A process has one frozen dataclass of settings, a subclass of `Settings`; each field is made by `setting()`.
* Defaults are written as an operator would write them ("10s", "4MiB") and go through the same parser, so that what
  `--help` prints and what the process uses cannot differ.
* Nothing here reads the environment: whoever has the texts (the command line) passes them to `Settings.from_texts`.
* A value with a unit carries it in the field's name (`operation_limit_s`, `chunk_bytes`), not in the flag's
  (`--operation-limit`): there the operator writes the unit with the value.
* What concerns several fields is checked in the dataclass's own `__post_init__`, which raises `self.wrong(field, why)`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Literal, Self, TypedDict, TypeVar, Unpack, overload
from typing import Required as Needed

from common.errors import SettingsError
from common.parsers import HostPort, Parser, choice, count, host_port

T = TypeVar("T")

_ENV_PREFIX: Final = "CSI_BRIDGE"
_STRIPPED: Final = "***stripped***"
_SHOWN_CHARS: Final = 100
"""A wrong value is quoted up to here: enough to recognise it, too little to fill a log."""


class Required(Enum):
    """The default of a setting that has none."""

    MARK = "required"


REQUIRED: Final = Required.MARK
"""`setting(REQUIRED, …)`: the process refuses to start without it."""

Default = str | tuple[str, ...] | Required | None


class How(TypedDict, total=False):
    """What `setting()` is told beyond the default and the parser.

    Attributes:
        help: one sentence for `--help`.
        unit: what one of it is, where the parser does not say ("calls", "nodes"); shown by `--help`.
        flag: its name without dashes, where it is not the field's name without the unit.
        aliases: further flags, with their dashes.
        secret: neither `describe` nor an error shows its value.
        group: the heading of `--help` that it stands under; empty: the usual ones.
        hidden: kept for old scripts; neither `--help` nor the reference shows it.
    """

    help: Needed[str]
    unit: str
    flag: str
    aliases: tuple[str, ...]
    secret: bool
    group: str
    hidden: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declaration:
    """What `setting()` was told: the part of a `Spec` that does not depend on the class."""

    default: Default
    parse: Parser[Any]
    repeatable: bool
    help: str
    unit: str = ""
    flag: str = ""
    aliases: tuple[str, ...] = ()
    secret: bool = False
    group: str = ""
    hidden: bool = False


@overload
def setting(default: str | Required, *, parse: Parser[T], **how: Unpack[How]) -> T: ...
@overload
def setting(default: None, *, parse: Parser[T], **how: Unpack[How]) -> T | None: ...
@overload
def setting(
    default: tuple[str, ...] | Required, *, parse: Parser[T], repeatable: Literal[True], **how: Unpack[How]
) -> tuple[T, ...]: ...
def setting(default: Default, *, parse: Parser[Any], repeatable: bool = False, **how: Unpack[How]) -> Any:
    """Declare a field of a settings dataclass.

    Args:
        default: as an operator would write it; None: unset (the field may then be None); REQUIRED: none; a tuple of
            texts for a repeatable setting.
        parse: how its text becomes the value.
        repeatable: the flag may be given several times, the variable holds several values between spaces, and the
            field is a tuple.
        **how: see `How`; `help` is needed.

    Raises:
        ValueError: the default is not one that `parse` takes: a bug in the declaration.
    """
    declaration = _Declaration(default=default, parse=parse, repeatable=repeatable, **how)
    metadata = {"setting": declaration}
    if isinstance(default, Required):
        return dataclasses.field(metadata=metadata)
    if isinstance(default, tuple):
        return dataclasses.field(default=tuple(parse(text) for text in default), metadata=metadata)
    return dataclasses.field(default=None if default is None else parse(default), metadata=metadata)


# -------------------- the settings of a process --------------------


@dataclass(frozen=True, slots=True)
class Spec:
    """One setting of one process, as the command line needs it.

    Attributes:
        name: the field's.
        flag: `--operation-limit`.
        aliases: further flags, with their dashes.
        variable: `CSI_BRIDGE_EDGE_OPERATION_LIMIT`.
        default: as an operator would write it; empty if unset or required.
        required: whether the process refuses to start without it.
        help: one sentence.
        unit: what one of it is; may be empty.
        metavar: what stands for the value in `--help`; empty for a switch.
        repeatable: whether the flag may be given several times.
        secret: whether its value is never shown.
        group: the heading of `--help` that it stands under; empty: the usual ones.
        hidden: whether `--help` and the reference leave it out.
    """

    name: str
    flag: str
    aliases: tuple[str, ...]
    variable: str
    default: str
    required: bool
    help: str
    unit: str
    metavar: str
    repeatable: bool
    secret: bool
    group: str
    hidden: bool

    @property
    def label(self) -> str:
        """What an error calls it: the variable and the flag."""
        return f"{self.variable} or {self.flag}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an operator may choose of one process. Subclass it as a frozen, keyword-only dataclass.

    `command` names the process in its variables: `hub` gives `CSI_BRIDGE_HUB_…`.
    """

    command: ClassVar[str] = ""

    @classmethod
    def from_texts(cls, given: Mapping[str, str | Sequence[str]]) -> Self:
        """The settings from what an operator wrote, by field name; what is missing has its default.

        Raises:
            SettingsError: a value is wrong, or a required one is missing.
        """
        values: dict[str, Any] = {}
        for spec in specs(cls):
            if spec.name in given:
                values[spec.name] = _read(cls, spec, given[spec.name])
            elif spec.required:
                raise SettingsError(spec.label, None, f"required: {_as_clause(spec.help)}")
        return cls(**values)

    def wrong(self, name: str, why: str) -> SettingsError:
        """The error to raise when field `name` does not fit the others; `why` says what is allowed."""
        spec = next(spec for spec in specs(type(self)) if spec.name == name)
        return SettingsError(spec.label, _shown(spec, getattr(self, name)), why)

    def named(self, error: SettingsError) -> SettingsError:
        """An error that a module raised under its setting's flag, with the variable, which only the process knows."""
        spec = next((spec for spec in specs(type(self)) if spec.flag == error.variable), None)
        return error if spec is None else SettingsError(spec.label, error.value, error.why)


def specs(settings: type[Settings]) -> tuple[Spec, ...]:
    """The settings of a process, in the order of its fields.

    Raises:
        TypeError: a field's name lacks the unit of its parser, or a field was not made by `setting()`.
    """
    return tuple(_spec(settings.command, field) for field in dataclasses.fields(settings))


def as_texts(settings: Settings) -> dict[str, list[str]]:
    """What `Settings.from_texts` makes these settings of, without what is unset and without secrets.

    A repeatable setting has any number of texts, any other one has one.
    """
    found = {spec.name: _texts(getattr(settings, spec.name)) for spec in specs(type(settings)) if not spec.secret}
    return {name: texts for name, texts in found.items() if texts}


def describe(settings: Settings) -> str:
    """The effective settings in one line, for the log at start: `http=127.0.0.1:10350 operation_limit_s=600`."""
    return " ".join(f"{spec.name}={_shown(spec, getattr(settings, spec.name))}" for spec in specs(type(settings)))


def _spec(command: str, field: "dataclasses.Field[Any]") -> Spec:
    declared = field.metadata.get("setting")
    if not isinstance(declared, _Declaration):
        raise TypeError(f"field {field.name} is not made by setting()")
    suffix = declared.parse.suffix
    if not field.name.endswith(suffix):
        raise TypeError(f"field {field.name} must carry its unit: {field.name}{suffix}")
    flag = declared.flag or field.name.removesuffix(suffix).replace("_", "-")
    return Spec(
        name=field.name,
        flag=f"--{flag}",
        aliases=declared.aliases,
        variable="_".join(filter(None, (_ENV_PREFIX, command, flag))).replace("-", "_").upper(),
        default=_default_text(declared.default),
        required=declared.default is REQUIRED,
        help=declared.help,
        unit=declared.unit,
        metavar=declared.parse.metavar,
        repeatable=declared.repeatable,
        secret=declared.secret,
        group=declared.group,
        hidden=declared.hidden,
    )


def _default_text(default: Default) -> str:
    if isinstance(default, tuple):
        return " ".join(default)
    return default if isinstance(default, str) else ""


def _read(settings: type[Settings], spec: Spec, given: str | Sequence[str]) -> Any:
    declared: _Declaration = settings.__dataclass_fields__[spec.name].metadata["setting"]
    texts = [given] if isinstance(given, str) else given
    values = []
    for text in texts:
        try:
            values.append(declared.parse(text))
        except ValueError as error:
            raise SettingsError(spec.label, _shown(spec, text), str(error)) from None
    return tuple(values) if spec.repeatable else values[0]


def _shown(spec: Spec, value: object) -> str:
    if value is None or value == ():
        return "unset"
    if spec.secret:
        return _STRIPPED
    if isinstance(value, tuple) and not isinstance(value, HostPort):
        return ",".join(_shown(spec, item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    # One line, one word: a value with blanks or control characters is quoted.
    return text if text.isprintable() and " " not in text else json.dumps(text)


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, tuple) and not isinstance(value, HostPort):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, float):
        return [f"{value:.12g}"]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def _as_clause(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


# -------------------- what every process takes --------------------


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(Settings):
    """What every long-running process of the bridge takes."""

    log_format: str = setting(
        "auto",
        parse=choice("auto", "text", "json"),
        group="logs",
        help="Format of log lines. auto is text on a terminal and JSON otherwise.",
    )
    log_level: str = setting(
        "info",
        parse=choice("debug", "info", "warning", "error"),
        group="logs",
        help="Least severe level that is logged.",
    )
    verbosity: int = setting(
        "0",
        parse=count,
        flag="v",
        aliases=("-v",),
        group="logs",
        help="Verbosity as in klog. 4 or more is the same as --log-level=debug.",
    )
    http: HostPort | None = setting(
        None, parse=host_port, group="logs", help="Address for /metrics, /healthz and /readyz. Unset: not served."
    )
