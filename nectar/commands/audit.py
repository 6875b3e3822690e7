"""`nectar audit`: attack each private mechanism and set what was shown beside what is claimed."""

from __future__ import annotations

from typing import Annotated

import typer

from common.config.problems import nearest
from common.errors import ConfigError
from nectar.options import argument

HELP = """\
Releases what a mechanism releases at fixed weights, many times over, with an example that is as easy to see as can be
and without it, and lets an attacker who knows all the rest tell which is which. What the attacker is right about
bounds epsilon from below. A line a mechanism: the bound, the claimed epsilon, and their ratio.

Of a phase (phase-...) a site's own code runs with one example more, in front of the others, among them and after them,
where the attacker knows every draw but the noise. A line a phase: by how many clips the released sum moves at each
place, the epsilon of such a release, and the claimed one.

The exit code is 1 if more is shown than is claimed. All of Nectar's own are audited where none is named.

\b
nectar audit
nectar audit feddm-gradient --noise 0.7
nectar audit feddm-published   not ours: what the paper's own gives away
nectar audit phase-fedvae
"""


def more_help(words: list[str]) -> str:
    """Return the mechanisms there are."""
    from nectar.audit.targets import TARGETS

    lines = (f"  {name:<24}{target.what}" for name, target in TARGETS.items())
    return "\n".join(["Mechanisms and phases:", *lines])


def main(
    names: Annotated[list[str] | None, argument("[MECHANISM]...", "which")] = None,
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
) -> int:
    """Audit what is named; return 1 if one of them shows more than it claims."""
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
