"""`nectar audit`: attack each private mechanism and set what was shown beside what is claimed."""

from __future__ import annotations

from common.errors import ConfigError
from nectar.words import take_options

SUMMARY = "attack the private mechanisms, and hold what is shown against what is claimed"

USAGE = """\
Usage: nectar audit [MECHANISM ...] [options]

Releases what a mechanism releases at fixed weights, many times over, with an example that is as easy to see as can be
and without it, and lets an attacker who knows all the rest tell which is which. What the attacker is right about bounds
epsilon from below. A line a mechanism: the bound, the epsilon that is claimed of that release, and the one over the
other. The exit code is 1 if more is shown than is claimed. All of Nectar's own are audited where none is named.

  --repeats N      releases with the example and as many without (200000); half choose the test, half are counted
  --noise S        the noise multiplier (1.0)
  --delta D        at which epsilon is meant (1e-5)
  --confidence P   of the bound (0.95)

  nectar audit
  nectar audit feddm-gradient --noise 0.7
  nectar audit feddm-published      # not ours: what the paper's own mechanism gives away

Mechanisms:
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
    from nectar.audit.attack import STATISTICS, audit
    from nectar.audit.targets import TARGETS

    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise ConfigError(f"there is no mechanism '{unknown[0]}': choose of {', '.join(TARGETS)}.")
    repeats = _number(options, "--repeats", "200000", least=1000, most=1e9)
    noise = _number(options, "--noise", "1.0", least=1e-3, most=1e3)
    delta = _number(options, "--delta", "1e-5", least=1e-12, most=0.5)
    confidence = _number(options, "--confidence", "0.95", least=0.5, most=1 - 1e-9)
    print(f"{'mechanism':<24}{'shown':>8}{'claimed':>9}{'share':>7}  by")
    held = True
    for name in names or [name for name, target in TARGETS.items() if target.ours]:
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
    if not held:
        print("More is shown than is claimed.")
    return 0 if held else 1


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
