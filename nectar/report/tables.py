"""The figures and tables of one run: its rounds, who held what, bytes, seconds, rejections, provenance."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from common.settings.sections import MEASURES
from common.sites import IN_PROCESS, RAY
from nectar.audit.images import examining as outcome
from nectar.records.record import over_classes
from nectar.report.view import View, accuracy, judged_by
from nectar.text import MISSING, is_number, seconds, share, size, total

Cell = str | tuple[str, str]
"""A cell's text, alone or with the name of its looks; of ``bar`` the text is a width in percent."""

#: rows of a table of rejections at most; metrics.jsonl has all
MAX_ROWS = 200
#: classes of which all counts are shown, and mistakes of more
_MAX_CLASSES = 20
_SHADES = 4
#: as they follow in a round
_PHASES = ("configure", "devices", "aggregate", "evaluate")
#: what a heading says of a run's provenance elsewhere
_APART = ("command", "run-config", "outcome", "continued", "schema", "privacy")


class ReportTable(NamedTuple):
    """A table; a row's first cell names it."""

    caption: str
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    foot: Sequence[str] = ()


def card(view: View) -> list[tuple[str, str]]:
    """Return the first figures: the run's measure, bytes sent up, seconds in rounds."""
    of, what = judged_by([view]), MEASURES[view.measure]
    where = f"test {what}" if of == "test" else f"{what} at the sites"
    line = view.lines[-1] if view.lines else {}
    over = over_classes(line.get(of) or {})
    judged = (share(accuracy(line, of, view.measure)), f"{where}{over} after round {view.reached}")
    if view.config is not None and view.config.evaluation.on == "none":
        judged = ("not judged", f"{what} (evaluation.on=none)")
    up, took = size(total(by_site(view, "up"))), sum(phases(r)["total"] for r in view.rounds)
    return [
        judged,
        (up if view.rounds else MISSING, "sent by all sites"),
        (f"{took:,.1f} s" if view.rounds else MISSING, "in rounds"),
    ]


def typed(view: View) -> str:
    """Return the command that began the run, as it was typed; nothing where the record has none."""
    return shlex.join(map(str, view.record.provenance.get("command", [])))


def again(view: View) -> str:
    """Return the command that reproduces a simulation from its record's directory; empty for another run."""
    if view.engine not in (IN_PROCESS, RAY):
        return ""
    return "nectar run --config config.yaml"


def summary_lines(view: View) -> list[tuple[str, str]]:
    """Return what the opening's figures leave out: sites, the best round, bytes."""
    sites = len(view.sites) or view.unlisted.get("sites", 0)
    pairs = [("sites", str(sites) if sites else MISSING)]
    by = view.measure
    judged = [line for line in view.rounds if accuracy(line, "validation", by) is not None]
    if judged:
        best = max(judged, key=lambda line: float(accuracy(line, "validation", by)))
        there, on_test = (share(accuracy(best, part, by)) for part in ("validation", "test"))
        what = "" if by == "accuracy" else f"{MEASURES[by]} on "
        message = f"round {best['round']}: {what}validation {there}, test {on_test}"
        pairs.append(("best on validation", message))
    up, down = (size(total(by_site(view, way))) for way in ("up", "down"))
    return [*pairs, ("sent", f"{up} up, {down} down")]


def by_site(view: View, way: str) -> dict[str, int]:
    """Return the bytes of all rounds ``up`` or ``down``, by site."""
    sums: dict[str, int] = {}
    for line in view.rounds:
        for site, count in line.get("bytes", {}).get(way, {}).items():
            sums[site] = sums.get(site, 0) + int(count)
    return sums


def rounds(view: View) -> ReportTable | None:
    """Return a line a round, the numbers behind the curves, without empty columns; None before the first."""
    rows = [_round(line) for line in view.lines]
    if not rows:
        return None
    shown = [name for name in rows[0] if {row[name] for row in rows} != {MISSING}]
    return ReportTable("Figures by round", shown, [[row[name] for name in shown] for row in rows])


def _round(line: Mapping[str, Any]) -> dict[str, str]:
    test, train, trained = line.get("test") or {}, line.get("train") or {}, line["round"] > 0
    over_sites = line.get("sites") or line.get("validation") or {}
    accepted, moved = len(line.get("accepted", [])), line.get("bytes", {})
    up, down = (size(total(moved.get(way, {}))) if trained else MISSING for way in ("up", "down"))
    replies = f"{accepted} of {accepted + len(line.get('rejected', {}))}"
    return {
        "round": str(line["round"]),
        "accuracy": share(accuracy(line)) + over_classes(test),
        "F1": share(test.get("f1")),
        "balanced": share(test.get("balanced")),
        "AUC": share(test.get("auc")),
        "loss": share(test.get("loss")),
        "validation": share(accuracy(line, "validation")),
        "at the sites": share(accuracy(line, "sites")) + over_classes(line.get("sites") or {}),
        "mean of sites": share(over_sites.get("mean")),
        "deviation": share(over_sites.get("deviation")),
        "worst site": share(over_sites.get("worst")),
        "replies": replies if trained else MISSING,
        "cosine": share(train.get("cosine")),
        "norm error": share(train.get("norm-error")),
        "up": up,
        "down": down,
    }


def at_the_sites(view: View) -> ReportTable | None:
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
    return ReportTable(caption, ["site", "held out", *(MEASURES.get(n, n) for n in shown)], rows)


def confusion(view: View) -> ReportTable | None:
    """Return what examples of each class were taken for after the last round: all counts, or the commonest mistakes.

    Of the test set, else of what the sites hold out; None where nobody counted.
    """
    parts = ("test", "sites", "validation")
    found = [
        (line["round"], part, counts)
        for line in view.rounds[-1:]
        for part in parts
        if (counts := (line.get(part) or {}).get("confusion"))
    ]
    if not found:
        return None
    server_round, part, counts = found[0]
    names = _class_names(view, len(counts))
    where = "Test" if part == "test" else "The sites' held-out"
    caption = (
        f"{where} {view.unit} after round {server_round}: true class by row, predicted by column"
    )
    if len(names) > _MAX_CLASSES:
        wrong = [
            (n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j
        ]
        wrong.sort(key=lambda one: (-one[0], one[1:]))
        rows = [
            [names[i], names[j], f"{n:,} of {sum(counts[i]):,}"] for n, i, j in wrong[:_MAX_CLASSES]
        ]
        caption = f"The commonest mistakes after round {server_round}, {where.lower()} {view.unit}"
        return ReportTable(caption, ["true class", "taken for", view.unit], rows) if rows else None
    most = max(map(max, counts))
    shaded = [
        [name, *(_shaded(n, most) for n in row)] for name, row in zip(names, counts, strict=True)
    ]
    return ReportTable(caption, ["", *names], shaded)


def _class_names(view: View, count: int) -> list[str]:
    return view.classes if len(view.classes) == count else [str(i) for i in range(count)]


def matches(view: View) -> ReportTable | None:
    """Return who helped whom, in a method whose server matches sites; None if there are no matches."""
    names = view.info.classes if view.info is not None else ()
    rows = [
        [str(r), site, helper, ", ".join(names[c] if c < len(names) else str(c) for c in classes)]
        for r, site, helper, classes in view.matches[:MAX_ROWS]
    ]
    head = ["round", "site", "helped by", "with the classes"]
    return ReportTable("Who helped whom", head, rows) if rows else None


def partition(view: View) -> ReportTable:
    """Return who held how many examples, of which class where that is known: the darker a cell, the more."""
    unit, sites = view.unit, view.sites
    if not view.record.counted:
        rows: list[list[Cell]] = [[s, f"{row.get('examples', 0):,}"] for s, row in sites.items()]
        return ReportTable(f"{unit.capitalize()} by site", ["site", unit], rows)
    counts = {name: list(row.get("classes", [])) for name, row in sites.items()}
    most = max((count for row in counts.values() for count in row), default=0)
    rows = [[s, f"{sum(row):,}", *(_shaded(n, most) for n in row)] for s, row in counts.items()]
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    foot = ["all", f"{sum(sums):,}", *(f"{count:,}" for count in sums)]
    caption = f"{unit.capitalize()} by site and class"
    return ReportTable(caption, ["site", unit, *view.classes], rows, foot)


def _shaded(count: int, most: int) -> Cell:
    """Return a cell with its number; roots, so that small counts still differ."""
    shade = min(_SHADES, int((count / most) ** 0.5 * _SHADES + 0.999)) if most else 0
    return f"{count:,}", f"s{shade}" if count else "zero"


def per_class(view: View) -> ReportTable | None:
    """Return each class's accuracy after the first and the last round, as number and bar."""
    judged = [line for line in view.rounds if (line.get("test") or {}).get("per_class")]
    if not judged:
        return None
    first, last = (line["test"]["per_class"] for line in (judged[0], judged[-1]))
    rows = [
        [name, share(before), share(after), _bar(after)]
        for name, before, after in zip(_class_names(view, len(last)), first, last, strict=True)
    ]
    head = ["class", f"round {judged[0]['round']}", f"round {judged[-1]['round']}", "0 to 1"]
    if counts := judged[-1]["test"].get("confusion"):
        head += ["precision", "F1", view.unit]
        predicted = [sum(column) for column in zip(*counts, strict=True)]
        for i, (row, own, taken) in enumerate(zip(rows, counts, predicted, strict=True)):
            precision = own[i] / taken if taken else None
            f1 = 2 * own[i] / (sum(own) + taken) if sum(own) + taken else None
            row += [share(precision), share(f1), f"{sum(own):,}"]
    return ReportTable("Test accuracy (recall) by class", head, rows)


def _bar(value: Any) -> Cell:
    return (f"{100 * max(0.0, min(1.0, float(value))):.1f}", "bar") if is_number(value) else MISSING


def traffic(view: View) -> ReportTable | None:
    """Return bytes each way by site, over all rounds on record; None if there are none."""
    up, down = (by_site(view, way) for way in ("up", "down"))
    names = list(dict.fromkeys([*view.sites, *up, *down]))
    rows = [[name, size(up.get(name, 0)), size(down.get(name, 0))] for name in names]
    foot = ["all", size(total(up)), size(total(down))]
    table = ReportTable("Bytes by site, all rounds", ["site", "up", "down"], rows, foot)
    return table if up or down else None


def seconds_by_phase(view: View) -> ReportTable:
    """Return seconds by phase and round, on the server."""
    taken = {line["round"]: phases(line) for line in view.rounds}
    there = {name for each in taken.values() for name in each}
    names = [*(name for name in _PHASES if name in there), *sorted(there - {*_PHASES, "total"})]
    names.append("total")
    rows = [[str(r), *(seconds(each.get(name)) for name in names)] for r, each in taken.items()]
    foot = ["all", *(seconds(sum(e.get(name, 0.0) for e in taken.values())) for name in names)]
    return ReportTable("Seconds by phase, on the server", ["round", *names], rows, foot)


def phases(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that the phases of a round took, and their sum as ``total``."""
    stated = line.get("seconds", {}).items()
    taken = {name: float(value) for name, value in stated if name != "by_site" and is_number(value)}
    return {**taken, "total": sum(taken.values())}


def seconds_by_site(view: View) -> ReportTable | None:
    """Return the sites' seconds of work; None if none said."""
    spent: dict[str, list[float]] = {}
    for line in view.rounds:
        for site, value in (line.get("seconds", {}).get("by_site") or {}).items():
            if is_number(value):
                spent.setdefault(site, []).append(float(value))
    rows = [
        [site, str(len(each)), seconds(sum(each)), seconds(sum(each) / len(each))]
        for site, each in spent.items()
    ]
    head = ["site", "rounds", "in all", "a round"]
    return ReportTable("Seconds of work by site, as it says", head, rows) if rows else None


def refused(view: View, field: str, title: str) -> tuple[ReportTable, int] | None:
    """Return which replies were ``rejected``, or ``unevaluated``, and why; how many; None if none was."""
    found = [
        (line["round"], site, reason)
        for line in view.lines
        for site, reason in (line.get(field) or {}).items()
    ]
    rows: list[list[Cell]] = [
        [str(r), (site, "left"), (reason, "words")] for r, site, reason in found[:MAX_ROWS]
    ]
    head: list[Cell] = ["round", ("site", "left"), ("reason", "left")]
    return (ReportTable(f"{title}: {len(found):,}", head, rows), len(found)) if found else None


def learned(view: View) -> list[ReportTable]:
    """Return what `nectar audit images` found, of attacks and by site; nothing where it was not asked."""
    content = view.record.audit
    if content is None:
        return []
    rows = outcome.attack_rows(content["all"])
    attacks = "Attacks on all sites together, the strongest with *"
    return [
        ReportTable(attacks, outcome.ATTACK_HEAD, rows),
        ReportTable("Attacks by site", outcome.SITE_HEAD, outcome.site_rows(content)),
    ]


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
