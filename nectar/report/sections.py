"""The tables of one run: partition, accuracy by class, bytes, seconds, rejections, provenance."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nectar.audit.images import examining as outcome
from nectar.report import privacy
from nectar.report.html import Markup, facts, h, join, scroll, table, words
from nectar.report.text import MISSING, is_number, number, plural, seconds, share, size, total
from nectar.report.view import View, accuracy
from nectar.report.worth import curve_of, network, worth

#: rows of a table of rejections at most; metrics.jsonl has all
_MAX_ROWS = 200
_SHADES = 4
#: as they follow in a round
_PHASES = ("configure", "devices", "aggregate", "evaluate")


def summary(view: View) -> Markup:
    """Say in a few lines what the opening's figures leave out."""
    number = len(view.sites) or view.unlisted.get("sites", 0)
    pairs = [("sites", str(number) if number else MISSING)]
    pairs += _best(view)
    pairs += _worth(view)
    up = sum(total(line.get("bytes", {}).get("up", {})) for line in view.rounds)
    down = sum(total(line.get("bytes", {}).get("down", {})) for line in view.rounds)
    pairs.append(("sent", f"{size(up)} up, {size(down)} down"))
    return facts(pairs)


def seconds_in_rounds(view: View) -> float:
    """Return the seconds that all rounds took."""
    return float(sum(_phases(line)["total"] for line in view.rounds))


def _best(view: View) -> list[tuple[str, str]]:
    judged = [line for line in view.rounds if accuracy(line, "validation") is not None]
    if not judged:
        return []
    best = max(judged, key=lambda line: float(accuracy(line, "validation")))
    said = (
        f"round {best['round']}: validation {share(accuracy(best, 'validation'))}, "
        f"test {share(accuracy(best))}"
    )
    return [("best on validation", said)]


def _worth(view: View) -> list[tuple[str, str]]:
    """Say how many labelled images at the server reach the last round's test accuracy, where that was measured."""
    last = accuracy(view.lines[-1]) if view.lines and view.config is not None else None
    if view.config is None or not is_number(last):
        return []
    found = worth(number(last), curve_of(view.config.dataset, network(view.config.model)))
    said = f"{found} labelled images at the server, which asks no site (method=server)"
    return [("worth", said)] if found else []


def rounds(view: View) -> Markup:
    """Return a line a round: the numbers behind the curves."""
    columns: dict[str, list[str]] = {
        "round": [str(line["round"]) for line in view.lines],
        "accuracy": [share(accuracy(line)) for line in view.lines],
        "loss": [share((line.get("test") or {}).get("loss")) for line in view.lines],
        "validation": [share(accuracy(line, "validation")) for line in view.lines],
        "at the sites": [share(accuracy(line, "sites")) for line in view.lines],
        "replies": [_replies(line) for line in view.lines],
        "cosine": [share((line.get("train") or {}).get("cosine")) for line in view.lines],
        "norm error": [share((line.get("train") or {}).get("norm-error")) for line in view.lines],
        "up": [_sent(line, "up") for line in view.lines],
        "down": [_sent(line, "down") for line in view.lines],
    }
    shown = {name: each for name, each in columns.items() if {*each} != {MISSING}}
    rows = list(zip(*shown.values(), strict=True))
    said = None
    if "cosine" in shown:
        said = h(
            "p",
            "cosine and norm error, means over the sites: how near the update that the server read comes to that of "
            "the site's own training as FedAvg does it. Equal updates have 1 and 0.",
        )
    return join([said, table("Figures by round", list(shown), rows)])


def matches(view: View) -> Markup | None:
    """Tell who helped whom, in a method whose server matches sites; nothing where there are no matches."""
    rows = [
        [str(server_round), site, helper, ", ".join(_class_names(view, classes))]
        for server_round, site, helper, classes in view.matches
    ]
    if not rows:
        return None
    header = ["round", "site", "helped by", "with the classes"]
    return table("Who helped whom", header, rows[:_MAX_ROWS])


def _class_names(view: View, classes: Sequence[int]) -> list[str]:
    names = view.info.classes if view.info is not None else ()
    return [names[c] if c < len(names) else str(c) for c in classes]


def at_the_sites(view: View) -> Markup | None:
    """Every site's figures of the last weights that the sites judged; nothing where they judged none."""
    judged = [line for line in view.rounds if line.get("evaluated")]
    if not judged:
        return None
    rows = [
        [site, f"{row['examples']:,}", share(row["accuracy"]), share(row["loss"])]
        for site, row in judged[-1]["evaluated"].items()
    ]
    caption = f"At the sites after round {judged[-1]['round']}, on what each holds out"
    return table(caption, ["site", "held out", "accuracy", "loss"], rows)


def _replies(line: Mapping[str, Any]) -> str:
    accepted = len(line.get("accepted", []))
    asked = accepted + len(line.get("rejected", {}))
    return f"{accepted} of {asked}" if line["round"] else MISSING


def _sent(line: Mapping[str, Any], way: str) -> str:
    return size(total(line.get("bytes", {}).get(way, {}))) if line["round"] else MISSING


def partition(view: View) -> Markup:
    """Who held how many examples of which class; the darker a cell, the more."""
    if view.unlisted:
        return h("p", _summed_up(view))
    if not view.sites:
        return h("p", "The run ended before the sites were known.")
    if not view.counted:
        unit = view.unit
        if view.config is not None and not view.config.tells_counts:
            named = f"Sites: {', '.join(view.sites)}."
            return h("p", f"The sites told no numbers of {unit} (privacy.counts=one). {named}")
        said = "The data set has no classes to count by."
        if view.classes:
            said = f"The server did not know the classes that the sites held, only their numbers of {unit}."
        rows = [[name, f"{row.get('examples', 0):,}"] for name, row in view.sites.items()]
        return join([h("p", said), table(f"{unit.capitalize()} by site", ["site", unit], rows)])
    counts = {name: list(row.get("classes", [])) for name, row in view.sites.items()}
    most = max((count for row in counts.values() for count in row), default=0)
    rows = [
        [name, f"{sum(row):,}", *(_shaded(count, most) for count in row)]
        for name, row in counts.items()
    ]
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    foot = ["all", f"{sum(sums):,}", *(f"{count:,}" for count in sums)]
    head = ["site", view.unit, *view.classes]
    return table(f"{view.unit.capitalize()} by site and class", head, rows, foot=foot)


def _summed_up(view: View) -> str:
    said = view.unlisted
    why = f"{said['why'][:1].upper()}{said['why'][1:]}."
    if said["examples"] is None:
        return f"{said['sites']:,} sites took part, and told no numbers of {view.unit}. {why}"
    return (
        f"{said['sites']:,} sites held {said['examples']:,} {view.unit}: {said['least']:,} to {said['most']:,} each, "
        f"{said['median']:,} in the middle. {why}"
    )


def _shaded(count: int, most: int) -> Markup:
    """Return a cell with its number; roots, so that small counts still differ."""
    shade = min(_SHADES, int((count / most) ** 0.5 * _SHADES + 0.999)) if most else 0
    return h("td", f"{count:,}", class_=f"s{shade}" if count else "zero")


def per_class(view: View) -> Markup:
    """Return each class's accuracy after the first and the last round, as number and bar."""
    judged = [line for line in view.rounds if (line.get("test") or {}).get("per_class")]
    if not judged:
        if view.partition and not view.classes:
            return h("p", "The data set has no classes to tell apart: it is text.")
        return h(
            "p",
            "No accuracy by class is on record: no round was finished, or the server evaluated no test set.",
        )
    first, last = (line["test"]["per_class"] for line in (judged[0], judged[-1]))
    names = view.classes if len(view.classes) == len(last) else [str(i) for i in range(len(last))]
    rows = [
        [name, share(before), share(after), _bar(after)]
        for name, before, after in zip(names, first, last, strict=True)
    ]
    head = ["class", f"round {judged[0]['round']}", f"round {judged[-1]['round']}", "0 to 1"]
    return table("Test accuracy by class", head, rows)


def _bar(value: Any) -> Markup:
    """Return a bar that repeats the number beside it, and so says nothing to a screen reader."""
    if not is_number(value):
        return h("td", MISSING)
    inner = h("span", style=f"width:{100 * max(0.0, min(1.0, float(value))):.1f}%")
    return h("td", h("span", inner, class_="bar", aria_hidden="true"))


def traffic(view: View) -> Markup:
    """Bytes each way by site, over all rounds on record."""
    up, down = (_by_site(view, way) for way in ("up", "down"))
    names = list(dict.fromkeys([*view.sites, *up, *down]))
    if not up and not down:
        return h("p", "No round was finished, so nothing is counted.")
    rows = [[name, size(up.get(name, 0)), size(down.get(name, 0))] for name in names]
    foot = ["all", size(total(up)), size(total(down))]
    said = (
        "Bytes of the serialised messages' content, the same in every engine. Up: from the sites."
    )
    head = ["site", "up", "down"]
    return join([h("p", said), table("Bytes by site, all rounds", head, rows, foot=foot)])


def _by_site(view: View, way: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for line in view.rounds:
        for site, count in line.get("bytes", {}).get(way, {}).items():
            sums[site] = sums.get(site, 0) + int(count)
    return sums


def times(view: View) -> Markup:
    """Seconds by phase and round, then by site."""
    if not view.rounds:
        return h("p", "No round was finished, so no time was taken.")
    taken = {line["round"]: _phases(line) for line in view.rounds}
    there = {name for phases in taken.values() for name in phases}
    names = [*(name for name in _PHASES if name in there), *sorted(there - {*_PHASES, "total"})]
    names.append("total")
    rows = [[str(r), *(seconds(phases.get(name)) for name in names)] for r, phases in taken.items()]
    sums = [sum(phases.get(name, 0.0) for phases in taken.values()) for name in names]
    foot = ["all", *map(seconds, sums)]
    by_phase = table("Seconds by phase, on the server", ["round", *names], rows, foot=foot)
    said = "devices: waiting for the sites. aggregate: reading the replies and the server's own training."
    return join([h("p", said), by_phase, _times_by_site(view)])


def _times_by_site(view: View) -> Markup | None:
    spent: dict[str, list[float]] = {}
    for line in view.rounds:
        for site, value in (line.get("seconds", {}).get("by_site") or {}).items():
            if is_number(value):
                spent.setdefault(site, []).append(float(value))
    if not spent:
        return None
    rows = [
        [site, str(len(each)), seconds(sum(each)), seconds(sum(each) / len(each))]
        for site, each in spent.items()
    ]
    head = ["site", "rounds", "in all", "a round"]
    return table("Seconds of work by site, as it says", head, rows)


def _phases(line: Mapping[str, Any]) -> dict[str, float]:
    taken = {
        name: number(value)
        for name, value in line.get("seconds", {}).items()
        if name != "by_site" and is_number(value)
    }
    return {**taken, "total": sum(taken.values())}


def rejections(view: View) -> Markup:
    """Which replies were not used, and why; which could not be evaluated."""
    return join(
        _refused(view, field, title, none)
        for field, title, none in (
            ("rejected", "Rejected replies", "No reply was rejected in a finished round."),
            ("unevaluated", "Sites without an evaluation", "No evaluation was refused."),
        )
    )


def _refused(view: View, field: str, title: str, none: str) -> Markup:
    found = [
        (line["round"], site, reason)
        for line in view.lines
        for site, reason in (line.get(field) or {}).items()
    ]
    if not found:
        return h("p", none)
    rows = [
        [str(server_round), h("td", str(site), class_="left"), h("td", str(reason), class_="words")]
        for server_round, site, reason in found[:_MAX_ROWS]
    ]
    head = ["round", words("site"), words("reason")]
    note = None
    if len(found) > _MAX_ROWS:
        said = f"The first {_MAX_ROWS} of {len(found):,} are shown; metrics.jsonl has all."
        note = h("p", said, class_="note")
    return join([table(f"{title}: {len(found):,}", head, rows), note])


def private(view: View, level: int) -> Markup:
    """Return what was private and what was not."""
    kept, open_ = privacy.protected(view), privacy.exposed(view)
    return join(
        [
            h(f"h{level + 1}", "Not given away"),
            h(
                "ul",
                *(h("li", said) for said in kept or ["Nothing that the report can vouch for."]),
            ),
            h(f"h{level + 1}", "Visible, or a function of private data"),
            h("ul", *(h("li", said) for said in open_)),
        ]
    )


def learned(view: View) -> Markup | None:
    """Say what `nectar audit images` found; nothing where it was not asked."""
    content = view.past.audit
    if content is None:
        return None
    attacks = table(
        "Attacks on all sites together, the strongest with *",
        outcome.ATTACK_HEAD,
        outcome.attack_rows(content["all"]),
    )
    by_site = table("Attacks by site", outcome.SITE_HEAD, outcome.site_rows(content))
    said = h("p", outcome.sentence(content))
    notes = [h("p", note, class_="note") for note in (outcome.DISTANCES, *content["notes"])]
    return join([said, attacks, by_site, *notes])


def provenance(view: View) -> Markup:
    """Command, versions, source, hardware, threads, checksum of the data, continuations."""
    content = view.past.provenance
    pairs = [("command", h("code", shlex.join(map(str, content.get("command", [])))))]
    left_out = ("command", "run-config", "outcome", "continued", "schema", "privacy")
    for key, value in content.items():
        if key not in left_out:
            pairs += _flattened(key, value)
    for index, again in enumerate(content.get("continued", []), start=1):
        pairs += _flattened(f"continued, {index}", again)
    pairs.append(("record", h("code", str(view.past.directory))))
    return facts(pairs)


def _flattened(key: str, value: Any) -> list[tuple[str, Markup]]:
    if isinstance(value, Mapping):
        return [pair for name, v in value.items() for pair in _flattened(f"{key}, {name}", v)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [(key, h("code", shlex.join(map(str, value)) or MISSING))]
    text = value if isinstance(value, str) else json.dumps(value)
    return [(key, h("code", text or MISSING))]


def configuration(view: View) -> Markup:
    """Return config.yaml, folded."""
    text = view.config_text or "(config.yaml cannot be read)"
    count = plural(text.count("\n"), "line")
    inner = scroll(h("pre", text), f"config.yaml of {view.past.record.id}")
    return h("details", h("summary", f"Every setting, resolved ({count})"), inner)
