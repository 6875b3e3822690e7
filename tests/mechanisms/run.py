"""Attack each private mechanism and each method's private phase, and say what was shown beside what is claimed.

    python -m tests.mechanisms.run [NAME...]

A mechanism releases what it releases at fixed weights, many times over, with an example that is as easy to see as can
be and without it, and an attacker who knows all the rest tells which is which: what the attacker is right about bounds
epsilon from below. Of a phase (phase-...) a site's own code runs with one example more, in front of the others, among
them and after them, where the attacker knows every draw but the noise. Prints a line each; the exit code is 1 if more
is shown than is claimed.
"""

from __future__ import annotations

import argparse
import sys

from tests.mechanisms.attack import STATISTICS, audit
from tests.mechanisms.phases import PHASES, PLACES, audit_phase
from tests.mechanisms.targets import TARGETS


def main(words: list[str]) -> int:
    """Audit what is named, or all that is ours."""
    parser = argparse.ArgumentParser(prog="python -m tests.mechanisms.run")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*TARGETS, *PHASES, []])
    parser.add_argument("--repeats", type=int, default=200_000)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    asked = parser.parse_args(words)
    chosen = asked.names or [*(name for name, one in TARGETS.items() if one.ours), *PHASES]
    held = _mechanisms_hold(
        [name for name in chosen if name in TARGETS], asked.repeats, asked.noise, asked.delta, 0.95
    )
    held = _phases_hold([name for name in chosen if name in PHASES], asked.delta) and held
    if not held:
        print("More is shown than is claimed.")
    return 0 if held else 1


def _mechanisms_hold(
    names: list[str], repeats: int, noise: float, delta: float, confidence: float
) -> bool:
    """Print a line for each mechanism, and return whether none shows more than it claims."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
