"""`nectar audit`: attack each private mechanism and set what was shown beside what is claimed."""

from __future__ import annotations

from common.errors import ConfigError
from nectar.words import take_options

SUMMARY = "attack the private mechanisms, and hold what is shown against what is claimed"

USAGE = """\
Usage: nectar audit [MECHANISM ...] [options]

Releases what a mechanism releases at fixed weights, many times over, with an example that is as easy to see as can be
and without it, and lets an attacker who knows all the rest tell which is which. What the attacker is right about bounds
epsilon from below. A line a mechanism: the bound, the claimed epsilon, and their ratio.

Of a phase (phase-...) a site's own code runs with one example more, in front of the others, among them and after them,
where the attacker knows every draw but the noise. A line a phase: by how many clips the released sum moves at each
place, the epsilon of such a release, and the claimed one.

The exit code is 1 if more is shown than is claimed. All of Nectar's own are audited where none is named.

  --repeats N      releases with the example and as many without (200000); half choose the test, half are counted
  --noise S        the noise multiplier (1.0)
  --delta D        at which epsilon is meant (1e-5)
  --confidence P   of the bound (0.95)

  nectar audit
  nectar audit feddm-gradient --noise 0.7
  nectar audit feddm-published      # not ours: what the paper's own mechanism gives away

  nectar audit phase-fedvae

Mechanisms and phases:
"""


def show_help(words: list[str]) -> int:
    """Print the usage with the mechanisms there are."""
    from nectar.audit.targets import TARGETS

    print(USAGE, end="")
    for name, target in TARGETS.items():
        print(f"  {name:<24}{target.what}")
    return 0


def main(words: list[str]) -> int:
    """Audit what ``words`` name; return 1 if one of them shows more than it claims."""
    options, names = take_options(words, values=("--repeats", "--noise", "--delta", "--confidence"))
    from nectar.audit.phases import PHASES
    from nectar.audit.targets import TARGETS

    unknown = [name for name in names if name not in TARGETS and name not in PHASES]
    if unknown:
        raise ConfigError(
            f"there is no mechanism '{unknown[0]}': choose of {', '.join([*TARGETS, *PHASES])}."
        )
    chosen = names or [*(name for name, target in TARGETS.items() if target.ours), *PHASES]
    mechanisms = [name for name in chosen if name in TARGETS]
    phases = [name for name in chosen if name in PHASES]
    delta = _number(options, "--delta", "1e-5", least=1e-12, most=0.5)
    held = _mechanisms_hold(mechanisms, options, delta)
    held = _phases_hold(phases, delta) and held
    if not held:
        print("More is shown than is claimed.")
    return 0 if held else 1


def _mechanisms_hold(names: list[str], options: dict[str, str], delta: float) -> bool:
    """Print a line for each mechanism, and return whether none shows more than it claims."""
    from nectar.audit.attack import STATISTICS, audit
    from nectar.audit.targets import TARGETS

    repeats = _number(options, "--repeats", "200000", least=1000, most=1e9)
    noise = _number(options, "--noise", "1.0", least=1e-3, most=1e3)
    confidence = _number(options, "--confidence", "0.95", least=0.5, most=1 - 1e-9)
    if names:
        print(f"{'mechanism':<24}{'shown':>8}{'claimed':>9}{'ratio':>7}  by")
    held = True
    for name in names:
        releases = TARGETS[name].releases(noise)
        found = audit(name, releases, delta=delta, repeats=int(repeats), confidence=confidence)
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


def _number(
    options: dict[str, str], name: str, otherwise: str, *, least: float, most: float
) -> float:
    text = options.get(name, otherwise)
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not least <= found <= most:
        raise ConfigError(f"{name} {text}: give a number from {least:g} to {most:g}.")
    return found
