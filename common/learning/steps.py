"""How many steps a site's local training takes: both sides know it of the settings and the number of examples."""

from __future__ import annotations

from dataclasses import dataclass

from common.config.resolved import Config
from common.settings.fedavg import TrainingSettings


@dataclass(frozen=True)
class DPSGDSteps:
    """How many private steps a training takes, and q, the chance with which each of them draws an example.

    A step's sum is divided by the examples that it draws in the mean, ``expected``. Whoever knows the numbers that it
    was planned with knows these; nothing else decides them.
    """

    rate: float
    steps: int
    expected: int

    @classmethod
    def plan(cls, batch: int, epochs: int, pool: int, drawn: int = 0) -> DPSGDSteps:
        """Return the steps in which as many examples are drawn, in the mean, as plain passes have.

        With q = B / n over all of n examples these are ceil(epochs / q). ``pool`` are the examples that are drawn from,
        as many as are said to be there, at least 1; ``drawn`` those of a pass, 0: as many as the pool has. A pass of
        fewer than ``batch`` gives all it has.
        """
        a_pass = drawn or pool
        size = min(batch, a_pass)
        return cls.of(size, -(-epochs * a_pass // size), pool)

    @classmethod
    def of(cls, batch: int, steps: int, pool: int) -> DPSGDSteps:
        """Return ``steps`` steps that draw ``batch`` of ``pool`` examples in the mean, or all of a smaller pool."""
        expected = min(batch, pool)
        return cls(expected / pool, steps, expected)


def planned_examples(config: Config, held: int) -> int:
    """Return the number of examples that the private steps of a site with ``held`` examples are planned with.

    Where the run keeps counts private ``held`` has no effect: every site has the steps of ``privacy.examples``, less
    the share that it holds out (``data.site_holdout``).
    """
    if config.privacy.counts != "one":
        return held
    return max(1, round(config.privacy.examples * (1 - config.data.site_holdout)))


def planned(config: Config, settings: TrainingSettings, pool: int, drawn: int) -> DPSGDSteps:
    """Return the private steps of a site's local training on ``pool`` examples of which a pass draws ``drawn``."""
    if config.privacy.counts == "one":
        pool = drawn = planned_examples(config, pool)
    return DPSGDSteps.plan(settings.batch, settings.epochs, pool, drawn)


def local_steps(config: Config, settings: TrainingSettings, examples: int) -> int:
    """Return how many steps the local training of a site with ``examples`` examples takes, by the run's settings.

    A server expects nothing else of them: all that it depends on is in ``config``, and cannot be left out.
    """
    if config.privacy.active and not config.clips_updates:
        return planned(config, settings, examples, examples).steps
    return settings.epochs * -(-examples // settings.batch)
