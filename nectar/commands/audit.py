"""`nectar audit`: attack each private mechanism, or a run, and say what was shown."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from common.config.problems import nearest
from common.errors import ConfigError
from nectar.options import AllowImports, argument, flag, here, option

HELP = """\
Releases what a mechanism releases at fixed weights, many times over, with an example that is as easy to see as can be
and without it, and lets an attacker who knows all the rest tell which is which. What the attacker is right about
bounds epsilon from below. A line a mechanism: the bound, the claimed epsilon, and their ratio.

Of a phase (phase-...) a site's own code runs with one example more, in front of the others, among them and after them,
where the attacker knows every draw but the noise. A line a phase: by how many clips the released sum moves at each
place, the epsilon of such a release, and the claimed one.

The exit code is 1 if more is shown than is claimed. All of Nectar's own are audited where none is named.

With `images RECORD`: attacks the run's synthetic images and its model, and says how near the images come to real ones
and how many of those that sites train on are found, where one in a hundred of those that no site has is taken for one.
Needs the data that the sites had shares of, so that it is for simulations; writes audit-images.json into the record,
which `nectar report` shows. At a site, `images REVIEW_DIR --data FOLDER` does the same to the pictures that await the
owner's word, and its outcome stays in that folder.

\b
nectar audit
nectar audit images latest
nectar audit images /srv/north/review --data /srv/north/images --others more
nectar audit feddm-gradient --noise 0.7
nectar audit feddm-published   not ours: what the paper's own gives away
nectar audit phase-fedvae
"""


_IMAGES = "images"


def more_help(words: list[str]) -> str:
    """Return the mechanisms there are."""
    from nectar.audit.targets import TARGETS

    lines = (f"  {name:<24}{target.what}" for name, target in TARGETS.items())
    return "\n".join(["Mechanisms and phases:", *lines])


def main(
    names: Annotated[list[str] | None, argument("[MECHANISM]... | images RECORD", "which")] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=1000,
            max=1_000_000_000,
            help="releases with the example and as many without; half choose the test, half are counted",
        ),
    ] = 200_000,
    noise: Annotated[float, typer.Option(min=1e-3, max=1e3, help="the noise multiplier")] = 1.0,
    delta: Annotated[
        float, typer.Option(min=1e-12, max=0.5, help="the delta at which an epsilon is meant")
    ] = 1e-5,
    confidence: Annotated[float, typer.Option(min=0.5, max=1 - 1e-9, help="of the bound")] = 0.95,
    data: Annotated[
        str | None,
        option("FOLDER", "with images, at a site: its own, <class>/* or train/<class>/*"),
    ] = None,
    others: Annotated[
        str | None,
        option("FOLDER", "with --data: images of the same kind that the site does not train on"),
    ] = None,
    as_json: Annotated[
        bool, flag("--json", "with images: as JSON, every image's distances too")
    ] = False,
    allow_imports: AllowImports = "",
) -> int:
    """Audit what is named; return 0, or 1 if a mechanism or a phase shows more than it claims."""
    if names and names[0] == _IMAGES:
        return _images(names[1:], data, others, as_json, allow_imports)
    given = {
        "--data": data,
        "--others": others,
        "--json": as_json,
        "--allow-imports": allow_imports,
    }
    if wrong := [name for name, value in given.items() if value]:
        raise ConfigError(f"{wrong[0]} goes with `nectar audit images`, not with a mechanism.")
    from nectar.audit.phases import PHASES
    from nectar.audit.targets import TARGETS

    unknown = [name for name in names or [] if name not in TARGETS and name not in PHASES]
    if unknown:
        guess = nearest(unknown[0], [*TARGETS, *PHASES])
        hint = f"did you mean {guess}?" if guess else "`nectar audit --help` lists all."
        raise ConfigError(f"there is no mechanism '{unknown[0]}': {hint}")
    chosen = names or [*(name for name, target in TARGETS.items() if target.ours), *PHASES]
    mechanisms = [name for name in chosen if name in TARGETS]
    phases = [name for name in chosen if name in PHASES]
    held = _mechanisms_hold(mechanisms, repeats, noise, delta, confidence)
    held = _phases_hold(phases, delta) and held
    if not held:
        print("More is shown than is claimed.")
    return 0 if held else 1


def _images(
    named: list[str], data: str | None, others: str | None, as_json: bool, allow_imports: str
) -> int:
    """Audit a record, or with ``data`` a site's review folder."""
    if len(named) != 1:
        raise ConfigError("nectar audit images takes one record, or a site's review folder.")
    if others is not None and data is None:
        raise ConfigError("--others goes with --data, the site's own images.")
    from nectar.audit.images.outcome import as_text

    content: dict[str, Any]
    if data is not None:
        from nectar.audit.images.at_site import audit_review

        content = audit_review(here(named[0]), here(data), here(others) if others else None)
    else:
        from nectar.audit.images.at_record import audit_record
        from nectar.records.named_record import record_at
        from nectar.records.record_imports import judge_of

        content = audit_record(record_at(named[0]), judge_of(allow_imports))
    print(json.dumps(content, indent=2) if as_json else as_text(content))
    return 0


def _mechanisms_hold(
    names: list[str], repeats: int, noise: float, delta: float, confidence: float
) -> bool:
    """Print a line for each mechanism, and return whether none shows more than it claims."""
    from nectar.audit.attack import STATISTICS, audit
    from nectar.audit.targets import TARGETS

    if names:
        print(f"{'mechanism':<24}{'shown':>8}{'claimed':>9}{'ratio':>7}  by")
    held = True
    for name in names:
        releases = TARGETS[name].releases(noise)
        found = audit(name, releases, delta=delta, repeats=repeats, confidence=confidence)
        share = found.bound.epsilon / found.claim
        print(
            f"{name:<24}{found.bound.epsilon:>8.2f}{found.claim:>9.2f}{share:>7.2f}  "
            f"{STATISTICS[found.bound.test.statistic]}: {found.bound.right} against {found.bound.wrong} of "
            f"{found.bound.tries}, {found.seconds:.0f} s",
            flush=True,
        )
        held = held and found.holds
    return held


def _phases_hold(names: list[str], delta: float) -> bool:
    """Print a line for each phase, and return whether one example more moves none by more than the clip."""
    from nectar.audit.phases import PLACES, audit_phase

    if names:
        places = "".join(f"{place:>15}" for place in PLACES)
        print(f"{'phase, moved by clips':<24}{places}{'epsilon':>9}{'claimed':>9}")
    held = True
    for name in names:
        found = audit_phase(name, delta)
        moved = "".join(f"{found.clips[place]:>15.3f}" for place in PLACES)
        print(f"{name:<24}{moved}{found.exact:>9.2f}{found.claimed:>9.2f}", flush=True)
        held = held and found.holds
    return held
