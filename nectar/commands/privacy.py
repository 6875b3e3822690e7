"""`nectar privacy`: what a site's data have cost so far, and what a run would."""

from __future__ import annotations

from pathlib import Path

import click

from common.errors import ConfigError
from nectar.arguments import above_0
from nectar.command_line import command

HELP = """\
With a site's state directory: prints its ledger: what was released of its data, by which runs, and the epsilon of all
of it together, for one example more or less. Nothing is written, and a ledger that was edited or shortened is refused.

With `plan`: prints the noise multiplier (standard deviation over what one example can move) with which --rounds of
--steps cost --epsilon, each step on a Poisson sample of a share --sample-rate; or with --noise how many rounds that
leaves.

\b
nectar privacy /srv/north/state --epsilon 3
nectar privacy plan --epsilon 3 --sample-rate 0.05 --steps 100 --rounds 20
nectar privacy plan --epsilon 3 --sample-rate 0.05 --steps 100 --noise 1.0
"""

_PLAN = "plan"


@command(HELP)
@click.argument("what", metavar="STATE_DIR|plan", help="a site's state directory, or plan")
@click.option(
    "--delta", type=float, default=1e-5, show_default=True, help="the delta of the epsilon"
)
@click.option("--epsilon", type=float, help="a budget: with STATE_DIR, whether it is spent")
@click.option(
    "--sample-rate",
    type=float,
    help="the chance with which an example is in a step's sample; 1: all are in each",
)
@click.option("--steps", type=click.IntRange(min=1), help="steps a round")
@click.option("--rounds", type=click.IntRange(min=1), help="rounds (default: 1)")
@click.option("--noise", type=float, help="the noise multiplier")
@click.option(
    "--spent",
    metavar="STATE_DIR",
    help="with --noise: what this ledger says counts as spent before",
)
def main(
    what: str,
    delta: float,
    epsilon: float | None,
    sample_rate: float | None,
    steps: int | None,
    rounds: int | None,
    noise: float | None,
    spent: str | None,
) -> int:
    """Print what the words ask for; return 0, or 1 where a budget is spent."""
    above_0("--delta", delta, below=1.0)
    above_0("--epsilon", epsilon)
    above_0("--noise", noise)
    planned = {"--sample-rate": sample_rate, "--steps": steps, "--rounds": rounds, "--noise": noise}
    if what != _PLAN:
        if given := [name for name, value in (planned | {"--spent": spent}).items() if value]:
            raise ConfigError(f"{given[0]} goes with `nectar privacy plan`, not with a directory.")
        return _account(Path(what).expanduser(), delta, epsilon)
    if epsilon is None or sample_rate is None or steps is None:
        missing = "--epsilon" if epsilon is None else "--sample-rate" if steps else "--steps"
        raise ConfigError(f"nectar privacy plan needs {missing}.")
    if not 0 < sample_rate <= 1:
        raise ConfigError(f"--sample-rate={sample_rate:g} must be a number above 0 and up to 1.")
    if noise is not None and rounds is not None:
        raise ConfigError("give --noise, to be told the rounds, or --rounds, to be told the noise.")
    if noise is not None:
        return _rounds(epsilon, delta, sample_rate, steps, noise, spent)
    if spent is not None:
        raise ConfigError("--spent goes with --noise, for the rounds that are left.")
    return _noise(epsilon, delta, sample_rate, steps, rounds or 1)


def _account(directory: Path, delta: float, budget: float | None) -> int:
    from common.privacy.ledger import Ledger
    from nectar.operate.privacy_plan import as_text

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


def _noise(target: float, delta: float, rate: float, steps: int, rounds: int) -> int:
    from common.config.privacy_plan import noise_for
    from common.privacy.accounting import epsilon
    from common.privacy.events import Event

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
    target: float, delta: float, rate: float, steps: int, noise: float, ledger: str | None
) -> int:
    from common.privacy.events import Event
    from common.privacy.ledger import Ledger
    from nectar.operate.privacy_plan import rounds_left

    spent = [] if ledger is None else Ledger(Path(ledger).expanduser()).read().events
    left = rounds_left(spent, [Event(_PLAN, noise, rate, steps)], target, delta)
    message = (
        "more than a million rounds" if left is None else f"{left} round{'' if left == 1 else 's'}"
    )
    print(
        f"An epsilon of {target:g} at delta {delta:g} leaves {message} of {steps} steps at a sample rate of {rate:g} "
        f"with a noise multiplier of {noise:g}."
    )
    return 0 if left is None or left > 0 else 1
