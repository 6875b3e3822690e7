"""`nectar privacy`: what a site's data have cost so far, and what a run would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.errors import ConfigError
from nectar.words import take_options

SUMMARY = "say what a site's privacy has cost, and plan noise or rounds"

USAGE = """\
Usage: nectar privacy STATE_DIR [--delta D] [--epsilon E]
       nectar privacy plan --epsilon E --sample-rate Q --steps S [--rounds R] [--delta D]
       nectar privacy plan --epsilon E --sample-rate Q --steps S --noise Z [--delta D] [--spent STATE_DIR]

The first prints a site's ledger: what was released of its data, by which runs, and the epsilon of all of it together,
for one example more or less. Nothing is written, and a ledger that was edited or shortened is refused.

The second prints the noise multiplier (standard deviation over what one example can move) with which R rounds of S
steps cost an epsilon of E, each step on a Poisson sample of a share Q; the third how many rounds E leaves for noise Z.

  --delta D          the delta (default 1e-5)
  --epsilon E        a budget: with STATE_DIR, whether it is spent
  --sample-rate Q    the chance with which an example is in a step's sample; 1: all are in each
  --steps S          steps a round
  --rounds R         rounds (default 1)
  --noise Z          the noise multiplier
  --spent STATE_DIR  what this ledger says counts as spent before

  nectar privacy /srv/north/state --epsilon 3
  nectar privacy plan --epsilon 3 --sample-rate 0.05 --steps 100 --rounds 20
  nectar privacy plan --epsilon 3 --sample-rate 0.05 --steps 100 --noise 1.0 --spent /srv/north/state
"""

_PLAN = "plan"
_OF_A_LEDGER = ("--delta", "--epsilon")
_OF_A_PLAN = (*_OF_A_LEDGER, "--sample-rate", "--steps", "--rounds", "--noise", "--spent")


def main(words: list[str]) -> int:
    """Print what `words` ask for; return the exit code: 1 where a budget is spent."""
    if words[:1] == [_PLAN]:
        options, rest = take_options(words[1:], values=_OF_A_PLAN)
        if rest:
            raise ConfigError(f"nectar privacy plan takes options alone, not {rest[0]!r}.")
        return _plan(options)
    options, rest = take_options(words, values=_OF_A_LEDGER)
    if len(rest) != 1:
        raise ConfigError(
            "nectar privacy takes a site's state directory, or `plan` and what is planned."
        )
    return _account(Path(rest[0]).expanduser(), options)


def _account(directory: Path, options: Mapping[str, str]) -> int:
    from common.privacy.ledger import Ledger
    from nectar.ledger_table import as_text

    delta = _number(options, "--delta", 1e-5, most=1.0)
    budget = _number(options, "--epsilon") if "--epsilon" in options else None
    if not directory.is_dir():
        raise ConfigError(f"{directory}: there is no such directory.")
    ledger = Ledger(directory)
    text, spent = as_text(ledger.read(), ledger.path, delta)
    print(text)
    if budget is None:
        return 0
    within = spent <= budget
    print(f"\nThe budget of {budget:g} is {'not spent' if within else 'spent'}.")
    return 0 if within else 1


def _plan(options: Mapping[str, str]) -> int:
    missing = [name for name in ("--epsilon", "--sample-rate", "--steps") if name not in options]
    if missing:
        raise ConfigError(f"nectar privacy plan needs {missing[0]}.")
    if "--noise" in options and "--rounds" in options:
        raise ConfigError("give --noise, to be told the rounds, or --rounds, to be told the noise.")
    if "--noise" not in options and "--spent" in options:
        raise ConfigError("--spent goes with --noise, for the rounds that are left.")
    target, delta = _number(options, "--epsilon"), _number(options, "--delta", 1e-5, most=1.0)
    rate, steps = _number(options, "--sample-rate", most=1.0, to=True), _whole(options, "--steps")
    if "--noise" in options:
        return _rounds(target, delta, rate, steps, options)
    rounds = _whole(options, "--rounds", 1)
    from common.privacy.accounting import epsilon
    from common.privacy.events import Event
    from nectar.operate.privacy_plan import noise_for

    try:
        noise = noise_for(target, delta, rate, steps * rounds)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    cost = epsilon([Event(_PLAN, noise, rate, steps * rounds)], delta).value
    print(
        f"A noise multiplier of {noise:.4g}: {rounds} rounds of {steps} steps at a sample rate of {rate:g} then cost "
        f"an epsilon of {cost:.3g} at delta {delta:g}."
    )
    return 0


def _rounds(
    target: float, delta: float, rate: float, steps: int, options: Mapping[str, str]
) -> int:
    from common.privacy.events import Event
    from common.privacy.ledger import Ledger
    from nectar.operate.privacy_plan import rounds_left

    noise = _number(options, "--noise")
    spent = (
        Ledger(Path(options["--spent"]).expanduser()).read().events if "--spent" in options else []
    )
    left = rounds_left(spent, [Event(_PLAN, noise, rate, steps)], target, delta)
    said = (
        "more than a million rounds" if left is None else f"{left} round{'' if left == 1 else 's'}"
    )
    print(
        f"An epsilon of {target:g} at delta {delta:g} leaves {said} of {steps} steps at a sample rate of {rate:g} with "
        f"a noise multiplier of {noise:g}."
    )
    return 0 if left is None or left > 0 else 1


def _number(
    options: Mapping[str, str],
    name: str,
    default: float | None = None,
    *,
    most: float = float("inf"),
    to: bool = False,
) -> float:
    """Return an option's number above 0 and below ``most``; with ``to`` up to it."""
    if name not in options and default is not None:
        return default
    try:
        value = float(options[name])
    except ValueError:
        value = 0.0
    if not (0 < value < most or (to and value == most)):
        bound = "" if most == float("inf") else f" and {'up to' if to else 'below'} {most:g}"
        raise ConfigError(f"{name}={options[name]} must be a number above 0{bound}.")
    return value


def _whole(options: Mapping[str, str], name: str, default: int | None = None) -> int:
    if name not in options and default is not None:
        return default
    if not options[name].isdecimal() or int(options[name]) < 1:
        raise ConfigError(f"{name}={options[name]} must be a whole number from 1.")
    return int(options[name])
