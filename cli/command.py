"""A command: its `--help` in groups of options, its errors, and Go's spelling of flags.

* `--insecure` is the same as `--insecure=true`, and `--insecure=false` works as well.
* Each flag works with one dash, too, as Go's flag package reads it: KubeEdge's csidriver is started with
  `-drivername=x` and `-v=5`.
"""

from typing import Any

import click

from cli.operators.table import say
from cli.options import Option, Options
from common.errors import BridgeError, SettingsError

# Both spellings of help, and lines as wide as the terminal up to 120.
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

# The headings of `--help` by group, in their order.
HEADINGS = {
    "required": "Required",
    "": "Options",
    "tls": "TLS",
    "join": "Nodes that join",
    "logs": "Logs and health",
    "tuning": "Tuning (the defaults fit most sites)",
}


class Command(click.Command):
    """A command whose `--help` lists required flags first, then the usual ones, then each group under its heading.

    With `settings`, its function gets one argument `settings` in place of the options that are fields of the settings.
    """

    def __init__(self, name: str | None, *, settings: Options[Any] | None = None, **how: Any) -> None:
        own = settings.all if settings is not None else []
        super().__init__(name, **how | {"params": [*how["params"], *own], "context_settings": CONTEXT_SETTINGS})
        self.settings = settings

    @property
    def options(self) -> list[Option]:
        return [param for param in self.params if isinstance(param, Option)]

    def make_parser(self, ctx: click.Context) -> Any:
        # click's, which also takes each flag with one dash
        parser = super().make_parser(ctx)
        for one in self.options:
            # Not of `--v`: `-v` is a flag already.
            flags = [flag[1:] for flag in one.opts if flag.startswith("--") and len(flag) > 3]
            parser.add_option(one, flags, dest=one.name, action="append" if one.multiple else "store", nargs=1)
        return parser

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = {flag.lstrip("-") for one in self.options if not one.metavar for flag in one.opts}
        args = [f"{arg}=true" if arg[:1] == "-" and arg.lstrip("-") in switches else arg for arg in args]
        try:
            rest = super().parse_args(ctx, args)
            if self.settings is not None and not ctx.resilient_parsing:
                ctx.params["settings"] = self.settings.make(ctx.params)
        except SettingsError as error:
            raise click.UsageError(str(error), ctx) from error
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BridgeError as error:
            say(f"csi-bridge: {error}", err=True)
            ctx.exit(1)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    group_class = type
