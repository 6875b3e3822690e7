"""The commands by what they are for, and how a function with typed options becomes one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_type_hints

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from common.code.release import release
from common.errors import ConfigError, fold, nearest


class Interrupted(Exception):
    """Ctrl-C, which a command did not answer itself."""


class ReaderGone(Exception):
    """Nobody reads on, as in ``nectar config | head``; click would end the process with a code of its own."""


def error_text(error: click.ClickException) -> str:
    """Return what an error of the library says, and where one reads what is taken."""
    message, ctx = error.format_message(), getattr(error, "ctx", None)
    if ctx is None or "`" in message or message.endswith("?"):
        return message
    return f"{message.rstrip('.')}: `{ctx.command_path} --help` says what it takes."


GROUPS: dict[str, dict[str, str]] = {
    "Run a federation here": {
        "run": "run a federation inside this process",
        "simulate": "run a federation on Flower's simulation engine, Ray",
        "compare": "run methods over seeds, what is not there yet, side by side",
        "config": "print the resolved configuration; explain methods and settings",
        "methods": "list the methods: what sites send, and what data each takes",
        "tables": "list the papers' tables and the experiments in each",
        "init-method": "write the files of a method of your own that runs",
        "data": "prepare a data set, count its classes by site, check a folder",
    },
    "Look at what it did": {
        "runs": "list the records of runs, newest first, or remove some",
        "serve": "show the records in a browser on this machine, and follow runs",
        "report": "write what runs did as one HTML file",
        "export": "write a run's model and synthetic images for use without Nectar",
        "score": "judge an exported model on labelled images, rows or a test set",
        "predict": "write the class that an exported model gives each picture or row",
    },
    "Account for privacy": {
        "privacy": "say what a site's privacy has cost, and plan noise or rounds",
        "audit": "attack the images that a run sent, and its model",
    },
    "Run a federation across machines": {
        "site": "run a site: a SuperNode whose ClientApps start at once",
        "submit": "run a federation at a SuperLink, and watch it",
        "status": "say which sites are online, and how far runs are",
        "doctor": "check this machine, its keys and its connection before a run",
        "keys": "make a federation's keys and certificates, register its sites",
    },
}


SUMMARIES = {name: message for group in GROUPS.values() for name, message in group.items()}


_HELP = """\
Nectar: federated learning from distilled data, on Flower.

Settings are words, key=value, as in Hydra, after an experiment's or a method's name:
`nectar run feddm dataset=mnist partition.alpha=0.01`. `nectar config --help` lists methods, data sets,
experiments and settings; `nectar COMMAND --help` says what a command does.
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


_GONE = {
    "fetch": "a record lies where the ServerApp runs, and docs/deployment.md says how it comes to you.",
    "backup": "docs/operator.md has the lines that copy the SuperLink's database and the keys.",
    "restore": "docs/operator.md has the lines; `nectar keys enforce` keeps out who was unregistered.",
    "journal": "`flwr list` and `nectar status` name runs and sites.",
}
"""Commands of earlier releases, and what there is in their place."""


_SEEDS = "`nectar compare METHOD --seeds N` runs it over seeds."
_LATEST = "the newest is listed first, and `latest` names it, as in `nectar report latest`."
_FLOWERS = (
    "it is an option of `flwr run`. Settings are words here, such as rounds=3 federation.sites=5."
)
_NO_OPTIONS = {
    **dict.fromkeys(("--federation", "--federation-config", "--run-config", "--stream"), _FLOWERS),
    "--delete": "records are removed by `nectar runs --remove`.",
    **dict.fromkeys(
        ("--no-fetch", "--without"),
        "the record stays where the ServerApp runs; `docs/deployment.md` says how it comes to you.",
    ),
    "--ray": "runs go to more machines as a job array: `--print` writes its lines, each with --only K/N.",
    "--latex": "every comparison writes table.tex beside table.md, so leave it out.",
    **dict.fromkeys(("--repeat", "--repeats", "--seeds", "--runs"), _SEEDS),
    **dict.fromkeys(("--last", "--latest"), _LATEST),
}
"""Options that are looked for, and what there is in their place."""


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


class Command(TyperCommand):
    """A command whose options are given once, and whose slips are answered with the word that was meant."""

    more_help: Callable[[list[str]], str] | None = None
    """Returns the help on the words that stand with ``--help``, where there is more than of the options."""

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
        """Describe what was meant by an option that there is none of."""
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
            hint = f"settings are words: did you mean {key}{'' if '=' in key else '=...'}?"
        elif guess:
            hint = f"did you mean --{guess}?"
        else:
            hint = f"`{ctx.command_path} --help` lists those that there are."
        return click.UsageError(f"option {name} is unknown: {hint}", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options alone: click 8.5 writes the arguments itself, typer 0.20 once more."""
        click.Command.format_options(self, ctx, formatter)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help; typer escapes brackets for rich, which is not asked here."""
        return super().get_help(ctx).replace("\\[", "[")

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise ReaderGone from None


class Actions(TyperGroup):
    """Commands by name; one that there is none of is answered with the nearest, an option first is the default's."""

    default = ""

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
            hint = (
                f"did you mean `{ctx.command_path} {guess}`?" if guess else "`%s --help` lists all."
            )
            raise click.UsageError(
                f"there is no command {args[0]!r}: {hint.replace('%s', ctx.command_path)}", ctx
            )
        return super().resolve_command(ctx, args)


class Commands(Actions):
    """``nectar``'s commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, as the help groups them."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, None if there is none."""
        if cmd_name not in SUMMARIES:
            return None
        return command_of(
            cmd_name, importlib.import_module(f"nectar.commands.{cmd_name.replace('-', '_')}")
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take ``nectar help COMMAND`` as people type it."""
        if args[0] == "help":
            args = [args[1], "--help", *args[2:]] if args[1:] else ["--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups, without importing them."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=13)


def command_of(name: str, module: ModuleType) -> click.Command:
    """Return the command that a module of ``nectar/commands`` is.

    ``main`` is its function, ``HELP`` what its help says before the options, ``more_help(words) -> str`` what it says
    after them or of the words that stand with ``--help``. A module with several has them by name in ``ACTIONS``, and
    ``DEFAULT`` names the one that options without a name are of.
    """
    kind = type("Group", (Actions,), {"default": getattr(module, "DEFAULT", "")})
    app = typer.Typer(add_completion=False, rich_markup_mode=None, help=module.HELP, cls=kind)
    actions: dict[str, Callable[..., int]] = getattr(module, "ACTIONS", {})
    own = getattr(module, "CONTEXT", {})
    for action, function in actions.items():
        settings = _CONTEXT | own.get(action, {})
        app.command(action, cls=Command, context_settings=settings)(function)
    if actions:
        app.info.context_settings, app.info.no_args_is_help = _CONTEXT, True
        group = get_command(app)
        for action, function in actions.items():
            _say_of_arguments(group.commands[action], function)  # type: ignore[attr-defined]
        return group
    app.command(name, cls=Command, context_settings=_CONTEXT, help=module.HELP)(module.main)
    command = get_command(app)
    command.more_help = getattr(module, "more_help", None)  # type: ignore[attr-defined]
    _say_of_arguments(command, module.main)
    return command


def _say_of_arguments(command: click.Command, function: Callable[..., int]) -> None:
    """Give arguments the help that typer 0.20 loses under click 8.5, whose own arguments have one."""
    hints = get_type_hints(function, include_extras=True)
    for argument in (one for one in command.params if isinstance(one, click.Argument)):
        for told in getattr(hints.get(argument.name or ""), "__metadata__", ()):
            argument.help = told.help


def _version(asked: bool) -> None:
    if asked:
        click.echo(f"nectar {release()}")
        raise typer.Exit


def _root() -> click.Command:
    app = typer.Typer(
        cls=Commands, rich_markup_mode=None, help=_HELP, context_settings=_CONTEXT, name="nectar"
    )

    @app.callback()
    def nectar(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="print the version"
        ),
    ) -> None:
        pass

    return get_command(app)


COMMANDS = _root()
