"""The figures and tables of one run: its rounds, who held what, bytes, seconds, rejections, provenance."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pandas import DataFrame

from common.settings.sections import MEASURES
from common.sites import IN_PROCESS, RAY
from nectar import confusion as confusions
from nectar.records.record import over_classes
from nectar.report.view import View, judged_by
from nectar.text import MISSING, Cell, Table, capital, is_number, number, seconds, share, size

#: rows of a table of rejections at most; metrics.jsonl has all
MAX_ROWS = 200
_SHADES = 4
#: as they follow in a round
_PHASES = ("configure", "devices", "aggregate", "evaluate")
#: what a heading says of a run's provenance elsewhere
_APART = ("command", "run-config", "outcome", "continued", "schema", "privacy")


def card(view: View) -> list[tuple[str, str]]:
    """Return the first figures: the run's measure, bytes sent up, seconds in rounds."""
    of, what = judged_by([view]), MEASURES[view.measure]
    where = f"test {what}" if of == "test" else f"{what} at the sites"
    figures = view.last_figures(of)
    judged = (
        share(figures.get(view.measure)),
        f"{where}{over_classes(figures)} after round {view.reached}",
    )
    if view.config is not None and view.config.evaluation.on == "none":
        judged = ("not judged", f"{what} (evaluation.on=none)")
    if not view.rounds:
        return [judged, (MISSING, "sent by all sites"), (MISSING, "in rounds")]
    return [
        judged,
        (size(int(view.frame["up"].sum())), "sent by all sites"),
        (f"{phases(view)['total'].sum():,.1f} s", "in rounds"),
    ]


def typed(view: View) -> str:
    """Return the command that started the run, as typed; empty where the record has none."""
    return shlex.join(map(str, view.record.provenance.get("command", [])))


def again(view: View) -> str:
    """Return the command that reproduces a simulation from its record's directory; empty for another run."""
    if view.engine not in (IN_PROCESS, RAY):
        return ""
    return "nectar run --config config.yaml"


def summary_lines(view: View) -> list[tuple[str, str]]:
    """Return what the opening's figures leave out: sites, the best round, bytes."""
    sites = len(view.record.sites) or view.unlisted.get("sites", 0)
    pairs = [("sites", str(sites) if sites else MISSING)]
    by = view.measure
    judged = view.track(f"validation.{by}")[view.frame["round"] > 0].dropna()
    if len(judged):
        at = judged.idxmax()
        there, on_test = share(judged[at]), share(view.track(f"test.{by}")[at])
        what = "" if by == "accuracy" else f"{MEASURES[by]} on "
        message = f"round {view.frame['round'][at]}: {what}validation {there}, test {on_test}"
        pairs.append(("best on validation", message))
    up, down = (size(int(view.frame[way].sum())) for way in ("up", "down"))
    return [*pairs, ("sent", f"{up} up, {down} down")]


def rounds(view: View) -> Table | None:
    """Return a line a round, the numbers behind the curves, without empty columns; None before the first."""
    lines, trained = view.record.rounds, view.frame["round"] > 0
    if not lines:
        return None
    accepted = [len(line.get("accepted", [])) for line in lines]
    asked = [n + len(line.get("rejected", {})) for n, line in zip(accepted, lines, strict=True)]
    replies = [f"{n} of {m}" for n, m in zip(accepted, asked, strict=True)]
    columns = {
        "accuracy": view.track("test.accuracy"),
        "F1": view.track("test.f1"),
        "balanced": view.track("test.balanced"),
        "AUC": view.track("test.auc"),
        "loss": view.track("test.loss"),
        "validation": view.track("validation.accuracy"),
        "at the sites": view.track("sites.accuracy"),
        "mean of sites": view.over_sites("mean"),
        "deviation": view.over_sites("deviation"),
        "worst site": view.over_sites("worst"),
        "replies": DataFrame({"replies": replies})["replies"].where(trained, MISSING),
        "cosine": view.track("train.cosine"),
        "norm error": view.track("train.norm-error"),
        **{way: view.frame[way].map(size).where(trained, MISSING) for way in ("up", "down")},
    }
    table = DataFrame(columns)
    shares = table.select_dtypes("number").columns
    table[shares] = table[shares].map(share)
    for name, of in (("accuracy", "test"), ("at the sites", "sites")):
        table[name] += [over_classes(line.get(of) or {}) for line in lines]
    table = table.loc[:, (table != MISSING).any()]
    table.insert(0, "round", view.frame["round"].map(str))
    return Table("Figures by round", [*table], table.to_numpy().tolist())


def at_the_sites(view: View) -> Table | None:
    """Return every site's figures of the last weights that the sites judged; None if they judged none."""
    judged = [line for line in view.rounds if line.get("evaluated")]
    if not judged:
        return None
    line, each = judged[-1], judged[-1]["evaluated"]
    shown = [n for n in (*MEASURES, "loss") if any(row.get(n) is not None for row in each.values())]
    rows = [
        [site, f"{row['examples']:,}{over_classes(row)}", *(share(row.get(name)) for name in shown)]
        for site, row in each.items()
    ]
    over = line.get("sites") or line.get("validation") or {}
    caption = (
        f"At the sites after round {line['round']}, on what each holds out{over_classes(over)}"
    )
    if is_number(over.get("mean")):
        what, own = MEASURES[view.measure], " (the AUC of each over the classes that it holds)"
        caption += (
            f": {what} {share(over['mean'])} in the mean of sites, deviation {share(over.get('deviation'))}, worst "
            f"{share(over.get('worst'))}{own if view.measure == 'auc' else ''}"
        )
    return Table(caption, ["site", "held out", *(MEASURES.get(n, n) for n in shown)], rows)


def confusion(view: View) -> Table | None:
    """Return what examples of each class were taken for after the last round: all counts, or the commonest mistakes.

    Of the test set, else of what the sites hold out; None without counts.
    """
    found = {part: view.last_figures(part).get("confusion") or [] for part in view.PARTS}
    part = next((part for part, counts in found.items() if counts), "")
    if not part or not view.reached:
        return None
    counts = found[part]
    names = _class_names(view, len(counts))
    where = "Test" if part == "test" else "The sites' held-out"
    if len(names) > confusions.MAX_CLASSES:
        wrong = confusions.mistakes(counts, confusions.MAX_CLASSES)
        rows = [[names[i], names[j], f"{n:,} of {of:,}"] for i, j, n, of in wrong]
        caption = f"The commonest mistakes after round {view.reached}, {where.lower()} {view.unit}"
        return Table(caption, ["true class", "taken for", view.unit], rows) if rows else None
    caption = (
        f"{where} {view.unit} after round {view.reached}: true class by row, predicted by column"
    )
    most = max(map(max, counts))
    shaded = [
        [name, *(_shaded(n, most) for n in row)] for name, row in zip(names, counts, strict=True)
    ]
    return Table(caption, ["", *names], shaded)


def _class_names(view: View, count: int) -> list[str]:
    return view.classes if len(view.classes) == count else [str(i) for i in range(count)]


def matches(view: View) -> Table | None:
    """Return who helped whom, in a method whose server matches sites; None if there are no matches."""
    names = view.info.classes if view.info is not None else ()
    rows = [
        [str(r), site, helper, ", ".join(names[c] if c < len(names) else str(c) for c in classes)]
        for r, site, helper, classes in view.matches[:MAX_ROWS]
    ]
    head = ["round", "site", "helped by", "with the classes"]
    return Table("Who helped whom", head, rows) if rows else None


def partition(view: View) -> Table:
    """Return who held how many examples, of which class where that is known: the darker a cell, the more."""
    unit, sites = view.unit, view.record.sites
    if not view.record.counted:
        rows: list[list[Cell]] = [[s, f"{row.get('examples', 0):,}"] for s, row in sites.items()]
        return Table(f"{capital(unit)} by site", ["site", unit], rows)
    counts = {name: list(row.get("classes", [])) for name, row in sites.items()}
    most = max((count for row in counts.values() for count in row), default=0)
    rows = [[s, f"{sum(row):,}", *(_shaded(n, most) for n in row)] for s, row in counts.items()]
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    foot = ["all", f"{sum(sums):,}", *(f"{count:,}" for count in sums)]
    caption = f"{capital(unit)} by site and class"
    return Table(caption, ["site", unit, *view.classes], rows, foot)


def _shaded(count: int, most: int) -> Cell:
    """Return a cell with its number; roots, so that small counts still differ."""
    shade = min(_SHADES, int((count / most) ** 0.5 * _SHADES + 0.999)) if most else 0
    return f"{count:,}", f"s{shade}" if count else "zero"


def per_class(view: View) -> Table | None:
    """Return each class's accuracy after the first and the last round, as number and bar."""
    judged = [line for line in view.rounds if (line.get("test") or {}).get("per_class")]
    if not judged:
        return None
    first, last = (line["test"]["per_class"] for line in (judged[0], judged[-1]))
    head = ["class", f"round {judged[0]['round']}", f"round {judged[-1]['round']}", "0 to 1"]
    names, shares = _class_names(view, len(last)), [map(share, first), map(share, last)]
    columns = [names, *shares, map(_bar, last)]
    if counts := judged[-1]["test"].get("confusion"):
        head += ["precision", "F1", view.unit]
        found = confusions.by_class(counts)
        columns += [found[name].map(share) for name in ("precision", "f1")]
        columns.append(f"{n:,}" for n in found["images"])
    rows = [*zip(*columns, strict=True)]
    return Table("Test accuracy (recall) by class", head, rows)


def _bar(value: Any) -> Cell:
    return (f"{100 * max(0.0, min(1.0, float(value))):.1f}", "bar") if is_number(value) else MISSING


def _by_site(view: View, *keys: str) -> DataFrame:
    """Return the figures that rounds have under ``keys``: a row a round, a column a site, NaN for a gap."""
    found = {
        line["round"]: reduce(lambda held, key: held.get(key) or {}, keys, line)
        for line in view.rounds
    }
    return DataFrame.from_dict(found, orient="index").map(number)


def traffic(view: View) -> Table | None:
    """Return bytes each way by site, over all rounds on record; None before the first."""
    moved = DataFrame({way: _by_site(view, "bytes", way).sum() for way in ("up", "down")})
    if moved.empty:
        return None
    moved = moved.reindex(list(dict.fromkeys([*view.record.sites, *moved.index]))).fillna(0)
    rows = [[site, size(up), size(down)] for site, up, down in moved.itertuples()]
    foot = ["all", *moved.sum().map(size)]
    return Table("Bytes by site, all rounds", ["site", "up", "down"], rows, foot)


def phases(view: View) -> DataFrame:
    """Return the seconds that the phases of each round took on the server, and their sum as ``total``."""
    by_round = {line["round"]: line.get("seconds", {}) for line in view.rounds}
    taken = DataFrame.from_dict(by_round, orient="index").drop(columns="by_site", errors="ignore")
    taken = taken.map(number).dropna(axis=1, how="all")
    names = [*(name for name in _PHASES if name in taken), *sorted({*taken} - {*_PHASES})]
    return taken[names].assign(total=taken.sum(axis=1))


def seconds_by_phase(view: View) -> Table:
    """Return seconds by phase and round, on the server."""
    taken = phases(view)
    rows = [[str(r), *map(seconds, row)] for r, *row in taken.itertuples()]
    foot = ["all", *taken.sum().map(seconds)]
    return Table("Seconds by phase, on the server", ["round", *taken], rows, foot)


def seconds_by_site(view: View) -> Table | None:
    """Return the sites' seconds of work; None if none said."""
    spent = _by_site(view, "seconds", "by_site").dropna(axis=1, how="all")
    rows = [
        [site, str(each.count()), seconds(each.sum()), seconds(each.mean())]
        for site, each in spent.items()
    ]
    head = ["site", "rounds", "in all", "a round"]
    return Table("Seconds of work by site, as it says", head, rows) if rows else None


def refused(view: View, field: str, title: str) -> tuple[Table, int] | None:
    """Return which replies were ``rejected``, or ``unevaluated``, and why; how many; None if none was."""
    found = [
        (line["round"], site, reason)
        for line in view.record.rounds
        for site, reason in (line.get(field) or {}).items()
    ]
    rows: list[list[Cell]] = [
        [str(r), (site, "left"), (reason, "words")] for r, site, reason in found[:MAX_ROWS]
    ]
    head: list[Cell] = ["round", ("site", "left"), ("reason", "left")]
    return (Table(f"{title}: {len(found):,}", head, rows), len(found)) if found else None


def provenance(view: View) -> list[tuple[str, str]]:
    """Return command, versions, source, hardware, threads, checksum of the data, continuations."""
    content = view.record.provenance
    pairs = [("command", shlex.join(map(str, content.get("command", []))))]
    for key, value in content.items():
        pairs += () if key in _APART else _flattened(key, value)
    for index, again in enumerate(content.get("continued", []), start=1):
        pairs += _flattened(f"continued, {index}", again)
    return [*pairs, ("record", str(view.record.directory))]


def _flattened(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, own in value.items():
            yield from _flattened(f"{key}, {name}", own)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield key, shlex.join(map(str, value)) or MISSING
    else:
        yield key, (value if isinstance(value, str) else json.dumps(value)) or MISSING
