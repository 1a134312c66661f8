"""An option: a setting as a flag of the command line and a variable of the environment.

The settings themselves, their parsers and their checks are in `common.settings`; here they only get their texts, a
line of `--help` each, and exit code 2 when one is wrong. click is the only reader of the environment.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from common.errors import SettingsError
from common.settings import Settings, Spec, specs

S = TypeVar("S", bound=Settings)
R = TypeVar("R")

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""For each command: both spellings of help, and lines as wide as the terminal up to 120."""


HEADINGS = {
    "required": "Required",
    "": "Options",
    "tls": "TLS",
    "logs": "Logs and health",
    "tuning": "Tuning (the defaults fit most sites)",
}
"""The headings of `--help` by group, in their order."""


class _TextOption(click.Option):
    """An option whose variable arrives as it was written: click would take a switch's `maybe` for unset."""

    def __init__(self, *args: Any, group: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.group = group

    def value_from_envvar(self, ctx: click.Context) -> str | tuple[str, ...] | None:
        text = self.resolve_envvar_value(ctx)
        return tuple(text.split()) if text is not None and self.multiple else text


class SettingsCommand(click.Command):
    """A command whose `--help` lists required flags first, then the usual ones, then each group under its heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        for group, heading in HEADINGS.items():
            records = [
                record
                for param in self.get_params(ctx)
                if isinstance(param, click.Option)
                and getattr(param, "group", "") == group
                and (record := param.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class SettingsGroup(click.Group):
    """A group of such commands."""

    command_class = SettingsCommand
    group_class = type


def group_of(spec: Spec) -> str:
    """The group of `HEADINGS` that a setting stands in."""
    return spec.group or ("required" if spec.required else "")


def settings_options(settings: type[S]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator that gives a click command the options of `settings`, and calls it with one argument, `settings`.

    A wrong value ends the command with exit code 2 and a message that names the flag and the variable. The flag wins
    over the variable; an empty variable counts as not set (a Helm value left blank).
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def command(**given: Any) -> R:
            texts = {spec.name: given.pop(spec.name) for spec in specs(settings)}
            try:
                effective = settings.from_texts({name: text for name, text in texts.items() if text not in {None, ()}})
            except SettingsError as error:
                raise click.UsageError(str(error)) from error
            return function(settings=effective, **given)

        wrapped: Callable[..., R] = command
        for spec in reversed(specs(settings)):
            wrapped = _option(spec)(wrapped)
        return wrapped

    return decorate


def _option(spec: Spec) -> Callable[[Callable[..., R]], Callable[..., R]]:
    takes_value: dict[str, Any] = {"metavar": spec.metavar, "multiple": spec.repeatable}
    is_switch: dict[str, Any] = {"is_flag": True, "flag_value": "true"}
    return click.option(
        spec.flag,
        *spec.aliases,
        spec.name,
        cls=_TextOption,
        type=str,
        default=None,
        envvar=spec.variable,
        help=_help(spec),
        hidden=spec.hidden,
        group=group_of(spec),
        **(takes_value if spec.metavar else is_switch),
    )


def _help(spec: Spec) -> str:
    facts = [
        "required" if spec.required else f"default: {spec.default or 'unset'}",
        f"unit: {spec.unit}" if spec.unit else "",
        "repeatable" if spec.repeatable else "",
        f"env: {spec.variable}",
    ]
    return f"{spec.help}  [{'; '.join(filter(None, facts))}]"
