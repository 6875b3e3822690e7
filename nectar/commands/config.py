"""``nectar config``: print the resolved configuration, or explain the settings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.code.imports import is_import_path
from common.config.keys import COMMAND_LINE, STRATEGY, Stated
from common.config.layers import names
from common.config.loading import load
from common.config.schema import section_classes
from common.config.tables import ENDING, TABLE
from common.config.text import dotted, scalar_text
from common.config.user_parts import arguments_model, check_strategy, chosen_method, settable
from common.errors import ConfigError, nearest
from common.methods import METHODS, settings_class, settings_of
from common.settings.section import Section, allowed, kind_words, notes
from common.settings.sections import FORMS, SECTIONS, RunSettings
from nectar.arguments import meant_by, parse_arguments, resolved
from nectar.command_line import command
from nectar.comparison.listing import tables
from nectar.comparison.paper_table import title
from nectar.options import config_file_option, settings_words
from nectar.records.outputs import with_recorded
from nectar.text import aligned

HELP = """\
Prints the configuration that `nectar run` with the same words would use, as YAML. A comment says where a value was
given; a value without one is the default of its settings class. `nectar config --help NAME` explains a method, a
section or a package.module:NAME.

The output can be run: `nectar config ... > my.yaml`, then `nectar run --config my.yaml`. A FILE may state only a few
settings; `base: NAME` in it starts from an experiment.
"""


@dataclass(frozen=True)
class Description:
    """One setting as the help prints it."""

    name: str
    default: Any
    allowed: str
    meaning: str = ""
    symbol: str = ""
    source: str = ""
    required: bool = False


_RUN = "run"

#: of the column of names; a longer one pushes its own line to the right
_WIDEST = 26
_WRAPPER = textwrap.TextWrapper(80, initial_indent=" " * 6, subsequent_indent=" " * 6)
_PATHS = (
    Description(
        "experiment", "", "the name of an experiment", "a cell of a table; may be named first"
    ),
    Description("output-dir", "~/nectar/runs", "a path", "where records go; or NECTAR_RUNS"),
    Description("data-dir", "~/.cache/nectar/data", "a path", "data sets; or NECTAR_DATA"),
    Description("resume", "", "a path", "the record of a run to continue"),
    Description(
        "resume_code",
        "",
        "accept",
        "with resume: continue although the code has changed since; the record notes it",
    ),
)


def more_help(words: list[str]) -> str:
    """Explain the named methods and sections; without a name, list all of them."""
    return "\n\n".join(map(_explain, words)) if words else _catalogue()


@command(HELP, more_help)
@settings_words
@config_file_option
def main(words: tuple[str, ...], config_file: str | None) -> int:
    """Print the configuration that the words resolve to."""
    run_config = with_recorded(parse_arguments(words, file=config_file))
    print(resolved(run_config, begins=False).dump_yaml(origins=True), end="")
    return 0


def describe(settings: type[Section]) -> list[Description]:
    """Describe every setting of a class, in the order in which the class states them."""
    return [
        Description(
            name=name,
            default=field.default,
            allowed=allowed(field),
            meaning=field.description or "",
            symbol=str(notes(field).get("symbol", "")),
            source=str(notes(field).get("source", "")),
        )
        for name, field in settings.model_fields.items()
    ]


def describe_arguments(cls: type[Any]) -> list[Description]:
    """Describe the arguments of a strategy that the ``strategy`` section can give."""
    return [
        Description(
            name=name,
            default=inspect.Parameter.empty if field.is_required() else field.default,
            allowed=kind_words(field.annotation),
            required=field.is_required(),
        )
        for name, field in settable(arguments_model(cls)).items()
    ]


def _catalogue() -> str:
    """List methods, data sets and sections, a line each, and tables with their experiments."""
    groups = {
        "User-defined methods": {
            "package.module:Class": "any Flower strategy, its arguments in the section `strategy`.",
            "package.module:METHOD": "a user-defined method, its settings in the section of its name.",
        },
        "Data sets": {name: title("dataset", name) for name in names("dataset")}
        | {form.written: form.meaning for form in FORMS.values()},
        "Sections": {_RUN: _first_line(RunSettings)}
        | {name: _first_line(cls) for name, cls in SECTIONS.items()},
    }
    width = min(_WIDEST, max(len(name) for group in groups.values() for name in group))
    blocks = [
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in group.items())])
        for title, group in groups.items()
    ]
    head = (
        f"Tables (`nectar compare {TABLE}=NAME`), and the experiments in each ([{ENDING}]: also with that ending, at "
        "two-core size):"
    )
    return "\n\n".join([f"Methods:\n{_methods()}", *blocks, f"{head}\n{tables()}"])


def _methods() -> str:
    """Return a table: what a site sends under each method, what data it takes, and what it is."""
    kinds = ("images", "table", "series", "text")
    rows: list[tuple[str, ...]] = [
        ("method", "a site sends", "images", "tables", "series", "text", "what it is")
    ]
    for name in METHODS:
        cls, takes = settings_class(name), METHODS[name].takes
        disclosed = cls().disclosure()
        sent = disclosed.payload if disclosed is not None else "nothing"
        rows.append(
            (name, sent, *("yes" if kind in takes else "-" for kind in kinds), _first_line(cls))
        )
    return textwrap.indent(aligned(rows, right=False), "  ")


def _explain(name: str) -> str:
    """Explain a method's or a section's settings."""
    leaf = Stated(name, COMMAND_LINE)
    if own := chosen_method({"method": leaf}):
        cls = settings_of(own)
        return _table(_first_line(cls), own.name, describe(cls))
    if is_import_path(name):
        strategy = check_strategy(leaf)
        return _table(f"{name}: arguments that can be set", STRATEGY, describe_arguments(strategy))
    if name == _RUN:
        return _table(_first_line(RunSettings), "", [*describe(RunSettings), *_PATHS])
    classes = section_classes()
    if name not in classes:
        section, _, key = name.rpartition(".")
        owner = classes.get(section)
        rows = describe(owner) if owner else [] if section else [*describe(RunSettings), *_PATHS]
        if found := [row for row in rows if row.name == key]:
            return _table(f"a setting of {section or _RUN}", section, found)
        if owner:
            raise ConfigError(
                f"{section} has no setting {key!r}: `nectar config --help {section}` lists those it has."
            )
        if homes := [section for section, cls in classes.items() if name in cls.model_fields]:
            more = f" and {len(homes) - 4} more" if len(homes) > 4 else ""
            raise ConfigError(
                f"{name} is a setting of {', '.join(homes[:4])}{more}: `nectar config --help {homes[0]}` explains it."
            )
        guess = nearest(name, [_RUN, *classes], 0.65) or meant_by(name)
        hint = f", the nearest is {guess}" if guess else ""
        raise ConfigError(f"{name} is unknown{hint}: `nectar config --help` lists all.")
    return _table(_first_line(classes[name]), name, describe(classes[name]))


def _table(title: str, section: str, rows: list[Description]) -> str:
    """Print a section; after a default the value of the default run, if its data set's file states another."""
    in_default_run = dotted(load({"method": section} if section in METHODS else {}).to_dict())
    return "\n".join([title, "", *(_row(section, row, in_default_run) for row in rows)])


def _row(section: str, row: Description, in_default_run: Mapping[str, Any]) -> str:
    """Print one setting: key and default, then what is allowed, its symbol and its meaning."""
    key = f"{section}.{row.name}" if section else row.name
    head = f"  {key} (required)" if row.required else f"  {key}={scalar_text(row.default)}"
    if section and key in in_default_run and in_default_run[key] != row.default:
        head += f"   ({scalar_text(in_default_run[key])} with dataset={in_default_run['dataset']}, the default)"
    facts = [row.allowed]
    facts += [f"symbol {row.symbol}"] if row.symbol else []
    facts += [f"source: {row.source}"] if row.source else []
    lines = [line for text in (row.meaning, "; ".join(facts)) for line in _WRAPPER.wrap(text)]
    return "\n".join([head, *lines])


def _first_line(cls: type[Section]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]
