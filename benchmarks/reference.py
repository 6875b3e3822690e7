"""The pages of ``docs/reference`` that are made from the code: ``python -m benchmarks.reference`` writes them.

Each page repeats the texts of a settings class, a parser, a registry or a file of ``conf``; a test checks that they
are up to date.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks import hooks as hooked
from client_app.owner.node_config import KEYS
from common import errors
from common.config.layers import flatten, names
from common.config.loading import load
from common.config.schema import section_classes
from common.config.tables import ENDING, TABLE, experiments
from common.config.text import read_yaml, scalar_text
from common.data.division.partitions import NATURAL
from common.data.published.catalogue import describe
from common.methods import METHODS, settings_class
from common.models.registry import KINDS
from common.settings.base import Disclosure
from common.settings.section import Section
from common.settings.sections import FORMS, PUBLIC, RunSettings
from common.storage.files import write_text
from nectar import cli
from nectar.command_line import COMMANDS, GROUPS, SUMMARIES
from nectar.commands.config import Description
from nectar.commands.config import describe as described
from nectar.comparison.listing import paper_items
from nectar.comparison.paper_table import PaperTable, TableRow, read_paper_table, title
from nectar.report.privacy import RELEASED
from nectar.text import plural

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "docs" / "reference"
_MARK = "<!-- written by `python -m benchmarks.reference`: change the code, not this page -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line).rstrip() + " |"
        for line in lines
    )


def prose(text: str) -> str:
    """Return a sentence of the code's as Markdown: outside code nothing is a tag, or emphasis."""
    parts = re.split(r"(`[^`]*`)", text.replace("``", "`"))
    return "".join(p if p.startswith("`") else re.sub(r"([<*])", r"\\\1", p) for p in parts)


def code(value: Any) -> str:
    """Return a value as it would be typed."""
    text = scalar_text(value)
    return f"`{text}`" if text else ""


# ---- settings


def settings() -> str:
    """Return every section: the run's, those that methods share, each method's."""
    shared = {"run": RunSettings} | {
        name: cls for name, cls in section_classes().items() if name not in METHODS
    }
    groups = {
        "Shared by all methods": shared,
        "Of one method": {name: settings_class(name) for name in METHODS},
    }
    listed = " · ".join(f"[{name}](#{name})" for own in groups.values() for name in own)
    parts = [
        "# Settings",
        "A setting is typed `section.key=value`; the keys of `run` have no section. "
        "`nectar config [METHOD] [KEY=VALUE]...` prints what a run would use and where each value comes from; "
        "`nectar config --help SECTION` prints a section of this page.",
        "**default** is that of the settings class; in brackets what the file of the default data set, "
        "digits, states ([all files](data-sets.md)). A paper's symbol and the source of a default are given after "
        "the meaning.",
        listed,
    ]
    for heading, own in groups.items():
        parts += [f"## {heading}", *(_section(name, cls) for name, cls in own.items())]
    return "\n\n".join(parts)


def _section(name: str, cls: type[Section]) -> str:
    above = _inherited(name, cls)
    rows = [
        row
        for row in described(cls)
        if above is None or row not in described(settings_class(above))
    ]
    config = load({"method": name} if name in METHODS else {}).to_dict()
    values = config if name == "run" else config.get(name, {})
    parts = [f"### {name}", prose((inspect.getdoc(cls) or "").partition("\n")[0])]
    if rows:
        cells = (_setting(row, values.get(row.name, row.default)) for row in rows)
        parts.append(table(("key", "default", "meaning", "allowed"), cells))
    if above is not None:
        more = "Also" if rows else "It has"
        parts.append(f"{more} the settings of [`{above}`](#{above}), and its values unless given.")
    return "\n\n".join(parts)


def _inherited(name: str, cls: type[Section]) -> str | None:
    """Return the method whose settings a method's class inherits."""
    classes = {settings_class(other): other for other in METHODS if other != name}
    return next((classes[base] for base in cls.__mro__[1:] if base in classes), None)


def _setting(row: Description, in_default_run: Any) -> tuple[str, ...]:
    notes = [f"symbol {row.symbol}"] if row.symbol else []
    notes += [f"source: {row.source}"] if row.source else []
    meaning = prose(row.meaning) + (f" *({prose('; '.join(notes))})*" if notes else "")
    other = "" if in_default_run == row.default else f" (digits: {code(in_default_run)})"
    return f"`{row.name}`", (code(row.default) + other).strip(), meaning, prose(row.allowed)


# ---- commands


def commands() -> str:
    """Return every command: its help, its words and options, its exit codes; then the errors."""
    parts = [
        "# Commands",
        "Options can be anywhere after the command; `--help` prints what this page has on it.",
        f"**Exit code.** {_returned_by(cli.main)} A command's own is 0 unless its section says more.",
    ]
    for heading, own in GROUPS.items():
        parts.append(f"## {heading}")
        for name in own:
            parts += _command(name)
    kinds = [
        (f"`{name}`", prose((inspect.getdoc(cls) or "").partition("\n")[0]))
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, errors.NectarError)
    ]
    parts += [
        "## Errors",
        "What a Python program that calls Nectar catches, from `common.errors`:",
        table(("class", "what it is"), kinds),
    ]
    return "\n\n".join(parts)


def _command(name: str) -> Iterator[str]:
    with click.Context(COMMANDS, info_name="nectar") as root:
        command = COMMANDS.get_command(root, name)
    assert command is not None
    yield f"### nectar {name}"
    yield f"{SUMMARIES[name][0].upper()}{SUMMARIES[name][1:]}."
    yield from _help(command.help or "")
    actions = command.commands if isinstance(command, click.Group) else {"": command}
    for action, own in actions.items():
        function = own.callback
        assert function is not None
        what = prose((inspect.getdoc(function) or "").partition("\n")[0]) if action else ""
        words = [p.metavar or p.name for p in own.params if isinstance(p, click.Argument)]
        line = " ".join(["nectar", name, *([action] if action else []), "[OPTIONS]", *words])
        yield f"`{line}`" + (f": {what}" if what else "")
        if rows := [_option(p) for p in own.params if isinstance(p, click.Option)]:
            yield table(("option", "what"), rows)
        if codes := _exit_code(function):
            yield f"Exit code: {codes}"


def _option(option: click.Option) -> tuple[str, str]:
    spelt = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" `{option.metavar or option.type.name.split()[0].upper()}`"
    shown = option.show_default and option.default not in (None, False)
    default = f" (default: {option.default})" if shown else ""
    return spelt + value, prose(option.help or "") + default


def _help(text: str) -> Iterator[str]:
    """Yield a help text's paragraphs; those that click must not rewrap are code."""
    for block in text.strip().split("\n\n"):
        if block.startswith("\b\n"):
            yield f"```text\n{block.removeprefix(chr(8)).strip()}\n```"
        else:
            yield prose(" ".join(block.split()))


def _exit_code(function: Callable[..., int]) -> str:
    """Return a command's exit codes from its docstring; empty if it can only be 0."""
    _, _, returned = (inspect.getdoc(function) or "").partition("\n")[0].partition("; return ")
    return "" if returned in ("", "0.") else prose(returned)


def _returned_by(function: Callable[..., int]) -> str:
    """Return what a docstring has under its heading Returns."""
    returned = (inspect.getdoc(function) or "").partition("Returns\n-------\nint\n")[2]
    return prose(" ".join(returned.split("\n\n")[0].split()))


# ---- methods


#: settings with which a method sends something else than by its defaults
_OTHERWISE = {
    "feddm": ({"start": "mean"}, {"start": "mix:4"}, {"start": "real"}),
    "fedssyn": ({"source": "real"},),
}
#: what the columns of the table do not show
_REMARKS = {
    "feddm": "Images of a class with few examples come close to these. Noise: set `feddm.mechanism`.",
    "fedaf": "Also the mean logits and soft labels of each class; the mean over one image is that image's.",
    "real": "A site can forbid it: `allow-start='noise'`.",
    "fedmix": "A mean of two images shows both.",
    "fedgen": "Noise covers the weights if `privacy.counts=public`; else it is refused.",
    "feddpms": "Once, a decoder and the means. Without noise the means alone are covered, given the weights.",
    "fedssyn": "Once, to the other sites too; then what the inner method sends. A generator trained on few "
    "images can reproduce some. `fedssyn.noise_multiplier` covers the images alone.",
    "fedsynth": "The batches of a site with few examples can show these.",
    "ridge": "Once. The sums give the class counts, and can identify every member that is among an attacker's "
    "candidates ([measured](../results/ridge.md)).",
    "feddm start=mix:4": "Means of real images can be separated.",
    "feddm start=real": "They resemble the real images they started from. A site can forbid it: `allow-start='noise'`.",
    "fedssyn source=real": "Refused in a real federation.",
}


def methods() -> str:
    """Return the methods: which data each takes, and what leaves a site under it."""
    kinds = tuple(KINDS)
    rows = []
    for name, method in METHODS.items():
        summary = prose((inspect.getdoc(settings_class(name)) or "").partition("\n")[0])
        link = f"[`{name}`](settings.md#{name})"
        rows.append((link, summary, *(_yes(kind in method.takes) for kind in kinds)))
    head = (
        "method",
        "sends",
        "began as",
        "shows the server",
        "with noise",
        "secret sum",
        "robust",
        "remark",
    )
    released = [(f"`{name}`", text) for name, text in RELEASED.items()]
    return "\n\n".join(
        [
            "# Methods",
            "`nectar run METHOD`, `nectar compare METHOD METHOD`. How each works: "
            "[baselines and bounds](../methods.md) and the pages of the methods.",
            table(("method", "what it is", *kinds), rows),
            "## What leaves a site",
            "The examples stay at the site, except in the rows that say *real images*. What is sent is computed from "
            "them: **without noise, treat it as personal data.** The rows show the default settings, and below a "
            "method the settings that change them. The record of a run states the same (`privacy` in "
            "`provenance.json`), and so does its report.",
            "![What a site sends, from real images to nothing, and which methods send it](../images/leaves.svg)",
            table(head, _sent()),
            "- **began as**: what the images or batches were made from; empty: trained or computed.\n"
            "- **shows the server**: *examples*: real ones, unchanged. *labels*: which classes a site holds. "
            "*counts*: how many examples of each. *update*: the site's update, or enough to compute it from the "
            "round's weights; membership inference and gradient inversion apply to it.\n"
            "- **with noise**: `privacy.noise_multiplier` above 0 covers everything that is sent, or is refused.\n"
            "- **secret sum**: `federation.secret=on` shows the server the total only; *noise*: the total can carry "
            "noise in shares of the sites ([secret sum](../secret-sum.md)).\n"
            "- **robust**: `federation.robust` can replace the mean by a median, a trimmed mean or Krum.",
            "In addition, without noise, a site reports its number of examples, losses and seconds, and how many of "
            "the images it sends are copies of real ones. In a run with noise none of these leaves, except the number "
            "of examples if it is declared public ([a private run](../privacy.md#a-private-run)).",
            "## What leaves by each mechanism",
            "With noise, a site's [ledger](../site-ledger.md) names the mechanism of each release:",
            table(("in the ledger", "what a site sends"), released),
        ]
    )


def _sent() -> Iterator[tuple[str, ...]]:
    """Yield what a site sends: a row for each method, and for each setting that changes it."""
    for name, method in METHODS.items():
        for changed in ({}, *_OTHERWISE.get(name, ())):
            disclosure = settings_class(name)(**changed).disclosure() or Disclosure("nothing")
            words = " ".join(f"{key}={value}" for key, value in changed.items())
            shown = {
                "examples": disclosure.unchanged,
                "labels": disclosure.labels,
                "counts": disclosure.class_counts,
                "update": disclosure.update,
            }
            sends = disclosure.payload != "nothing"
            covered = method.private and disclosure.began_as in ("", "noise")
            noised = "covered" if covered else "refused"
            summed = "with noise" if method.noised else "yes"
            yield (
                f"`{name}`" + (f" `{name}.{words}`" if words else ""),
                disclosure.payload,
                disclosure.began_as,
                ", ".join(key for key, value in shown.items() if value),
                noised if sends else "",
                summed if method.summed else "",
                _yes(method.averages),
                _REMARKS.get(f"{name} {words}".strip(), ""),
            )


def _yes(stated: bool) -> str:
    return "yes" if stated else ""


# ---- data sets


def data_sets() -> str:
    """Return the data sets: what each is, and the settings that its file has."""
    rows = [(f"[`{name}`](#{name})", *_about(name)) for name in names("dataset")]
    own = [(f"`{form.written}`", prose(form.meaning)) for form in FORMS.values()]
    parts = [
        "# Data sets",
        "`dataset=NAME`; how each comes to a machine: [data](../data.md).",
        table(("name", "shape", "classes", "public", "natural sites"), rows),
        "**public**: contains nothing private; Nectar treats every other data set as private. "
        "**natural sites**: `partition.kind=natural` gives each owner's examples to one site.",
        "Your own:",
        table(("dataset", "what"), own),
        "## What each file sets",
        "Over a setting's own default, under an experiment's and what is typed.",
    ]
    for name in names("dataset"):
        content = read_yaml(ROOT / "conf" / "dataset" / f"{name}.yaml", name) or {}
        stated = " ".join(f"`{key}={scalar_text(v)}`" for key, v in flatten(content, name).items())
        parts += [f"### {name}", prose(title("dataset", name)), stated or "Nothing."]
    return "\n\n".join(parts)


def _about(name: str) -> tuple[str, ...]:
    images = load({"dataset": name}).images
    if not images.classes and name not in (*PUBLIC, *NATURAL):
        return "yours", "yours", "", ""
    info = describe(name, images)
    size = " x ".join(map(str, info.shape))
    return size, f"{len(info.classes):,}", _yes(name in PUBLIC), _yes(name in NATURAL)


# ---- tables and experiments


def tables() -> str:
    """Return the map from a paper's table or figure to the command that runs it."""
    known, small = {name: read_paper_table(name) for name in names(TABLE)}, experiments()
    rows = [
        (f"[{name}](#{name})", prose(one.title), *_compared(one, small))
        for name, one in known.items()
    ]
    parts = [
        "# Tables and experiments",
        "Tables and figures of papers, and the command that runs each and prints our numbers next to "
        "the paper's; where no paper is named the table is ours. Sizes are the paper's; `--small` runs "
        "variants for two cores. Each column is an experiment: `nectar run EXPERIMENT` runs it once.",
        table(("table", "what", "command", "for two cores"), rows),
        "## Figures and tables of the papers",
        "All that are numbered: the command for each, or why Nectar has none, and how ours differs. "
        "How a table differs is stated at the head of its file in `conf/table`.",
    ]
    for paper, own in itertools.groupby(paper_items(), lambda item: item.paper):
        made = (
            (
                item.item,
                f"`{item.command}`" if item.command else f"not available: {prose(item.reason)}",
                prose(item.differs),
            )
            for item in own
        )
        parts += [f"### Figures of {paper}", table(("in the paper", "command", "ours"), made)]
    for name, one in known.items():
        parts += [f"## {name}", prose(one.title)]
        cells = [
            f"`{cell}`" + (f" (and `{ENDING}`)" if small[cell] else "")
            for cell in one.columns.values()
        ]
        parts.append(f"Experiments: {', '.join(cells)}." if cells else "No experiments.")
        if one.refit:
            parts.append("Reported runs train on all images; searches hold `data.validation` back.")
        if one.rows:
            parts.append(table(("row", "run as", "searched", "chosen"), map(_row, one.rows)))
        if sources := dict.fromkeys(block.source for block in one.printed):
            parts.append(f"Printed: {prose('; '.join(sources))}.")
    return "\n\n".join(parts)


def _compared(one: PaperTable, small: Mapping[str, bool]) -> tuple[str, str]:
    line = f"nectar compare {TABLE}={one.name}"
    shrinks = all(small[cell] for cell in one.columns.values())
    return f"`{line}`", f"`{line} --small`" if shrinks else ""


def _row(row: TableRow) -> tuple[str, ...]:
    tried = " ".join(f"`{key}={','.join(values)}`" for key, values in row.tune.items())
    chosen = " ".join(f"`{one}`" for one in row.chosen)
    rounds = f" in {plural(row.rounds, 'round')}" if row.rounds is not None else ""
    return f"`{row.label}`", f"`{row.run or row.label}`{rounds}", tried, chosen


# ---- a site's node config


def node_config() -> str:
    """Return the keys of a site's node config."""
    rows = []
    for key, field in KEYS.items():
        if not field.exclude:
            (example,) = field.examples or [""]
            notes: Any = field.json_schema_extra
            rows.append((f"`{key}={example}`", field.description or "", notes["otherwise"]))
    return "\n\n".join(
        [
            "# Node config",
            '`nectar site --node-config "key=value ..."` sets these keys, on the site\'s own machine; no one else '
            "can. [What a site says of itself](../site.md#what-a-site-says-of-itself) has examples and what holds of "
            "all keys.",
            table(("key", "what", "without it"), rows),
        ]
    )


# ---- the hooks of a method


def hooks() -> str:
    """Return what the author of a method overrides and calls."""
    parts = [
        "# Hooks of a method",
        "Signatures, and what each is for. [Add a method](../add-a-method.md) writes two methods with them.",
    ]
    for heading, rows in hooked.parts():
        parts += [f"## {heading}", table(("hook", "what"), [(a, prose(b)) for a, b in rows])]
    return "\n\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "commands.md": commands,
    "methods.md": methods,
    "data-sets.md": data_sets,
    "tables.md": tables,
    "node-config.md": node_config,
    "hooks.md": hooks,
}


def page(name: str) -> str:
    """Return the content of a page in ``docs/reference``."""
    return f"{_MARK}\n\n{PAGES[name]()}\n"


def main() -> int:
    """Write every page."""
    for name in PAGES:
        write_text(PLACE / name, page(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
