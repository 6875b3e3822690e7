"""The commands by what they are for; each is a click command in a module of its name, imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click

from common.errors import ConfigError, fold, nearest


class Interrupted(Exception):
    """Ctrl-C, which a command did not answer itself."""


class ReaderGone(Exception):
    """The reader of the output has gone, as in ``nectar config | head``; click would choose another exit code."""


GROUPS: dict[str, dict[str, str]] = {
    "Run and compare": {
        "run": "run a federation in this process",
        "simulate": "run a federation on Flower's simulation engine, Ray",
        "compare": "run methods over seeds, side by side; cached runs are reused",
        "config": "print the resolved configuration; explain methods and settings",
        "data": "prepare a data set, count its classes by site, check a folder",
    },
    "Look at results and export them": {
        "runs": "list the records of runs, newest first, or remove some",
        "report": "write what runs did as one HTML file",
        "export": "write a run's model and synthetic images for use without Nectar",
        "score": "score an exported model on labelled data, or predict classes",
        "privacy": "show what a site's privacy has cost, and plan noise or rounds",
        "audit": "attack the images that a run sent, and its model",
    },
    "Run a federation across machines": {
        "site": "run a site: a SuperNode whose ClientApps start at once",
        "submit": "run a federation at a SuperLink, and watch it",
        "status": "show which sites are online, and how far runs are",
        "doctor": "check this machine, its keys and its connection before a run",
        "keys": "make a federation's keys and certificates, register its sites",
    },
}

SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}

_HELP = """\
Nectar: federated learning from distilled data, on Flower.

Settings are written key=value, as in Hydra, after the name of an experiment or a method:
`nectar run feddm dataset=mnist partition.alpha=0.01`. `nectar config --help` lists methods, data sets,
experiments and settings; `nectar COMMAND --help` explains a command.
"""

_MEANT = {
    "create": "ca",
    "init": "ca",
    "list": "runs",
    "ls": "runs",
    "train": "run",
    "evaluate": "score",
    "plot": "report",
}
"""Commands as people call them elsewhere."""

_RENAMED = {
    "predict": ("score", "--predict"),
    "methods": ("config", "--help"),
    "tables": ("compare", "--list"),
}
"""Commands of earlier releases that are an option of another one."""

_GONE = {
    "fetch": "the record is on the ServerApp's machine; docs/deployment.md explains how to copy it.",
    "backup": "docs/operator.md has the commands that copy the SuperLink's database and the keys.",
    "restore": "docs/operator.md has the commands; `nectar keys enforce` keeps unregistered sites out.",
    "serve": "`nectar report latest --follow` follows a run, and `nectar runs` lists the records.",
    "init-method": "copy examples/damped, which docs/add-a-method.md explains.",
    "journal": "`flwr list` and `nectar status` name runs and sites.",
}
"""Commands of earlier releases, and what there is in their place."""

_SEEDS = "`nectar compare METHOD --seeds N` runs it over seeds."
_LATEST = "the newest is listed first, and `latest` names it, as in `nectar report latest`."
_FLOWERS = "it is an option of `flwr run`. Write settings as key=value, such as rounds=3 federation.sites=5."
_NO_OPTIONS = {
    **dict.fromkeys(("--federation", "--federation-config", "--run-config", "--stream"), _FLOWERS),
    "--delete": "records are removed by `nectar runs --remove`.",
    **dict.fromkeys(
        ("--no-fetch", "--without"),
        "the record stays on the ServerApp's machine; `docs/deployment.md` explains how to copy it.",
    ),
    "--ray": "to use several machines, run a job array: `--print` writes its lines, each with --only K/N.",
    "--latex": "every comparison writes table.tex as well as table.md, so leave it out.",
    **dict.fromkeys(("--repeat", "--repeats", "--seeds", "--runs"), _SEEDS),
    **dict.fromkeys(("--last", "--latest"), _LATEST),
}
"""Options that people look for, and what there is in their place."""

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}
"""How every command lays out its help."""


def error_text(error: click.ClickException) -> str:
    """Return a usage error as a sentence that names the command's help."""
    message, ctx = error.format_message(), getattr(error, "ctx", None)
    if ctx is None or "`" in message or message.endswith("?"):
        return message
    return f"{message.rstrip('.')}: `{ctx.command_path} --help` explains the usage."


class Command(click.Command):
    """A command that refuses repeated options and suggests the word that a typo was meant as.

    Parameters
    ----------
    more_help : function, optional
        Returns the help on the words after ``--help``.
    """

    def __init__(
        self, *args: Any, more_help: Callable[[list[str]], str] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, **more})
        self.more_help = more_help

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show help before anything that a word could be wrong about."""
        names = ctx.help_option_names
        if any(word in names for word in args):
            named = [word for word in args if word not in names]
            text = ctx.get_help() if not named or self.more_help is None else ""
            more = "" if self.more_help is None else self.more_help(named)
            click.echo("\n\n".join(part for part in (text, more) if part))
            ctx.exit()
        try:
            self._refuse_repeats(ctx, args)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._unknown(ctx, error.option_name) from None

    def _refuse_repeats(self, ctx: click.Context, args: list[str]) -> None:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for option in (one for one in order if isinstance(one, click.Option) and not one.multiple):
            if order.count(option) > 1:
                raise ConfigError(f"{option.opts[0]} is given twice: give it once.")

    def _unknown(self, ctx: click.Context, name: str) -> click.UsageError:
        """Return the error for an unknown option, with what was probably meant."""
        from common.methods import METHODS
        from nectar.arguments import meant_by

        known = [opt for one in self.get_params(ctx) for opt in one.opts if opt.startswith("--")]
        takes_words = any(one.name == "words" for one in self.params)
        word = name.lstrip("-")
        method = next((typed for typed in ctx.obj or () if typed in METHODS), "")
        key = meant_by(word, method) if takes_words else ""
        guess = nearest(word, [option.lstrip("-") for option in known])
        if name in _NO_OPTIONS and name not in known:
            hint = _NO_OPTIONS[name]
        elif key and (f".{key}".endswith(f".{word}") or not guess):
            hint = (
                f"settings are written key=value: did you mean {key}{'' if '=' in key else '=...'}?"
            )
        elif guess:
            hint = f"did you mean --{guess}?"
        else:
            hint = f"`{ctx.command_path} --help` lists the options."
        return click.UsageError(f"option {name} is unknown: {hint}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise ReaderGone from None


class Actions(click.Group):
    """Commands by name; an unknown name is answered with the nearest, an option first belongs to the default."""

    command_class = Command

    def __init__(self, *args: Any, default: str = "", **more: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, "no_args_is_help": True, **more})
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default's name before its options."""
        meant = self.default and args and args[0].startswith("-")
        mine = [self.default] if meant and args[0] not in ctx.help_option_names else []
        return super().parse_args(ctx, [*mine, *args])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names."""
        names = self.list_commands(ctx)
        if args[0] in _GONE and args[0] not in names:
            raise click.UsageError(f"there is no command {args[0]!r} any more: {_GONE[args[0]]}")
        if args[0] not in names and not args[0].startswith("-"):
            from common.methods import METHODS

            method = next((name for name in METHODS if fold(name) == fold(args[0])), "")
            meant = f"run {method}" if method else _MEANT.get(args[0], "")
            known = meant.partition(" ")[0] in names
            guess = meant if known else nearest(args[0], names)
            path = ctx.command_path
            hint = f"did you mean `{path} {guess}`?" if guess else f"`{path} --help` lists all."
            raise click.UsageError(f"there is no command {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)


class Commands(Actions):
    """``nectar``'s commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, as the help groups them."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if cmd_name not in SUMMARIES:
            return None
        found: click.Command = importlib.import_module(f"nectar.commands.{cmd_name}").main
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take ``nectar help COMMAND`` as people type it, and the commands of the release before."""
        if args[0] == "help":
            args = [args[1], "--help", *args[2:]] if args[1:] else ["--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args[0] in _RENAMED:
            name, option = _RENAMED[args[0]]
            click.echo(f"nectar: `nectar {args[0]}` is `nectar {name} {option}` now.", err=True)
            args = [name, option, *args[1:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups, without importing them."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=13)


def command(
    help: str, more_help: Callable[[list[str]], str] | None = None
) -> Callable[[Callable[..., int]], Command]:
    """Return the decorator of a function that is a command of its module; its result is the exit code."""
    return click.command(cls=Command, help=help, more_help=more_help)


def group(help: str, default: str = "") -> Actions:
    """Return a command with commands below it, of which options alone mean the ``default``."""
    return Actions(help=help, default=default)


def _print_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from common.code.release import release

        click.echo(f"nectar {release()}")
        ctx.exit()


COMMANDS = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="print the version",
)(Commands("nectar", help=_HELP))
