"""`nectar privacy`: the epsilon that a site has spent, and what a planned run would cost."""

from __future__ import annotations

from pathlib import Path

import click

from common.errors import ConfigError
from nectar.arguments import above_0
from nectar.command_line import command

HELP = """\
With a site's state directory: prints its ledger, that is the releases of each run and their total epsilon, for one
example added or removed. Writes nothing; a ledger that was edited or truncated is an error.

With `plan`: prints the noise multiplier (standard deviation divided by the sensitivity) with which --rounds of --steps
cost --epsilon, each step on a Poisson sample at --sample-rate; or, with --noise, the number of rounds within --epsilon.

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
@click.option(
    "--epsilon", type=float, help="the budget; with STATE_DIR, report whether it is spent"
)
@click.option(
    "--sample-rate",
    type=float,
    help="the probability that an example is in a step's sample; 1: always",
)
@click.option("--steps", type=click.IntRange(min=1), help="steps a round")
@click.option("--rounds", type=click.IntRange(min=1), help="rounds (default: 1)")
@click.option("--noise", type=float, help="the noise multiplier")
@click.option(
    "--spent",
    metavar="STATE_DIR",
    help="with --noise: add what this ledger has already spent",
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
    """Print a ledger or a plan; return 0, or 1 if the budget is spent."""
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
        raise ConfigError(
            "give either --noise, to compute the rounds, or --rounds, to compute the noise."
        )
    if noise is not None:
        return _rounds(epsilon, delta, sample_rate, steps, noise, spent)
    if spent is not None:
        raise ConfigError("--spent needs --noise: it is for computing the remaining rounds.")
    return _noise(epsilon, delta, sample_rate, steps, rounds or 1)


def _account(directory: Path, delta: float, budget: float | None) -> int:
    from common.privacy.ledger import Ledger
    from nectar.operate.privacy_plan import as_text

    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory.")
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
