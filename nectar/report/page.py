"""The page: one run, or several side by side and then each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, stdev

from common.wire.synthetic_images import Copies
from nectar.report import curves, opening, pictures, sections
from nectar.report.html import Markup, h, join, table, words
from nectar.report.style import CSS
from nectar.report.text import MISSING, is_number, number, share, size, total
from nectar.report.view import View, accuracy, groups, judged_by

#: bytes of pictures that all runs of a page may take
PICTURES = 8_000_000

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser lets the page do: show pictures that are in it."""

Section = tuple[str, str, Markup]


def page(views: Sequence[View]) -> str:
    """Return the report on one or several runs as a whole HTML document that loads nothing."""
    title = views[0].title if len(views) == 1 else f"{len(views)} runs side by side"
    budget = partial(pictures.Budget, PICTURES // len(views))
    if len(views) == 1:
        first = [_opening(views[0])]
        parts = _of_run(views[0], "", 2, budget())
        entries = [(anchor, name) for anchor, name, _ in parts]
        body = [_section(part, 2) for part in parts]
    else:
        first = [h("p", "Runs of one configuration that differ in their seed stand together.")]
        body = [_section(("together", "All runs", _side_by_side(views)), 2)]
        entries = [("together", "All runs")]
        for index, view in enumerate(views, start=1):
            anchor = f"run-{index}"
            inner = _run_block(view, f"{anchor}-", budget())
            body.append(_section((anchor, f"Run {index}: {view.title}", inner), 2))
            entries.append((anchor, f"Run {index}: {view.title}"))
    return _document(title, first, entries, body)


def _document(
    title: str,
    first: Sequence[Markup],
    entries: Sequence[tuple[str, str]],
    body: Sequence[Markup],
) -> str:
    head = h(
        "head",
        h("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", f"{title} – Nectar report"),
        h("style", Markup(CSS)),
    )
    links = [h("li", h("a", name, href=f"#{anchor}")) for anchor, name in entries]
    whole = h(
        "body",
        h("a", "Skip to the report", class_="skip", href="#report"),
        h("header", h("h1", title), *first),
        h("nav", h("ul", *links), aria_label="Contents"),
        h("main", *body, id="report", tabindex=-1),
        h(
            "footer",
            h("p", "Written by nectar report. This page loads nothing and runs no script."),
        ),
    )
    return f"<!DOCTYPE html>\n{h('html', head, whole, lang='en')}\n"


def _section(part: Section, level: int) -> Markup:
    anchor, name, content = part
    heading = h(f"h{level}", name, id=f"{anchor}-title")
    return h("section", heading, content, id=anchor, aria_labelledby=f"{anchor}-title")


def _run_block(view: View, prefix: str, budget: pictures.Budget) -> Markup:
    parts = [_section(part, 3) for part in _of_run(view, prefix, 3, budget)]
    return join([_opening(view), *parts])


def _of_run(view: View, prefix: str, level: int, budget: pictures.Budget) -> list[Section]:
    """Return a run's sections: anchor, heading, content."""
    sent = "Synthetic images" if view.facts is None else view.facts.pictures.capitalize()
    figures = join(
        [
            *(curves.of_run(view), sections.rounds(view)),
            *(sections.at_the_sites(view), sections.matches(view)),
        ]
    )
    made: list[tuple[str, str, Callable[[], Markup | None]]] = [
        ("curves", "Accuracy and loss", lambda: figures),
        ("partition", "Who held what", lambda: sections.partition(view)),
        ("images", sent, lambda: pictures.of_run(view, level, budget)),
        ("learned", "What a reader learns", lambda: sections.learned(view)),
        ("classes", "Accuracy by class", lambda: sections.per_class(view)),
        ("bytes", "Bytes", lambda: sections.traffic(view)),
        ("seconds", "Seconds", lambda: sections.times(view)),
        ("rejected", "Rejected replies", lambda: sections.rejections(view)),
        ("private", "What was and was not private", lambda: sections.private(view, level)),
        ("provenance", "Provenance", lambda: sections.provenance(view)),
        ("configuration", "Configuration", lambda: sections.configuration(view)),
    ]
    done = [(f"{prefix}{anchor}", name, content()) for anchor, name, content in made]
    return [(anchor, name, content) for anchor, name, content in done if content is not None]


def _opening(view: View) -> Markup:
    parts = (opening.card(view), opening.verdict(view), _copies(view), _outcome(view))
    return join([*parts, sections.summary(view), opening.again(view)])


def _copies(view: View) -> Markup:
    """Say how many of the images that were sent are copies of real ones; that none is proves nothing."""
    copies = Copies.recorded(view.rounds)
    if copies is None:
        return join([])
    return h("p", copies.sentence(), class_="outcome bad" if copies.found else "note")


def _outcome(view: View) -> Markup:
    kind, sentence = view.outcome
    return h("p", sentence, class_=f"outcome {kind}")


def _side_by_side(views: Sequence[View]) -> Markup:
    """Compare the groups: the mean over seeds, its spread, and every seed's own figure."""
    of = judged_by(views)
    rows = []
    for name, members in groups(views).items():
        final = [accuracy(view.lines[-1], of) if view.lines else None for view in members]
        values = [number(value) for value in final if is_number(value)]
        ups = [
            sum(total(r.get("bytes", {}).get("up", {})) for r in view.rounds) for view in members
        ]
        seeds = ", ".join(
            f"{view.settings.get('seed')}: {share(value)}{'' if view.past.completed else ' (unfinished)'}"
            for view, value in zip(members, final, strict=True)
        )
        spread = f"{stdev(values):.4f}" if len(values) > 1 else MISSING
        reached = sorted({view.reached for view in members})
        rows.append(
            [
                name,
                share(mean(values)) if values else MISSING,
                spread,
                " to ".join(str(r) for r in (reached[0], reached[-1])[: len(reached)]),
                size(round(mean(ups))),
                h("td", seeds, class_="words"),
            ]
        )
    where = "test set" if of == "test" else "the sites' own data"
    head = ["runs", "accuracy", "std over seeds", "rounds", "up in all", words("seed: accuracy")]
    caption = f"Accuracy after the last round, {where}"
    return join([table(caption, head, rows), curves.of_groups(views), _per_class(views)])


def _per_class(views: Sequence[View]) -> Markup | None:
    """Compare the accuracy by class, where all runs have the same classes."""
    named = groups(views)
    classes = views[0].classes
    columns = []
    for members in named.values():
        found = [
            (view.lines[-1].get("test") or {}).get("per_class") for view in members if view.lines
        ]
        if any(view.classes != classes for view in members) or not all(found) or not found:
            return None
        columns.append([_mean(values) for values in zip(*found, strict=True)])
    rows = [[name, *cells] for name, *cells in zip(classes, *columns, strict=True)]
    return table("Test accuracy by class, mean over seeds", ["class", *named], rows)


def _mean(values: Sequence[object]) -> str:
    known = [number(value) for value in values if is_number(value)]
    return share(mean(known)) if known else MISSING
