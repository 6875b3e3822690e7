"""Whether a run's settings leave room for a secret sum: what cannot be added up unseen is refused, or switched off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from common.methods import Method, resolve, those_that
from common.secret.cohort import LEAST, MOST, colluders_of, threshold_of
from common.settings.sections import FederationSettings

if TYPE_CHECKING:
    from common.config.resolved import Config

#: what looks at one site's update, by setting: off unless typed
_LOOKS = ("robust", "clip", "max_update")


def alike(secret: object, method: Method) -> dict[str, str]:
    """Return the default weighting of a secret sum, equal for all sites: none can claim a weight then."""
    averages = secret not in ("off", False) and method.summed and method.averages
    return {f"{method.name}.weighting": "uniform"} if averages else {}


def secret_rules(config: Config) -> Iterator[str]:
    """Yield why a run's sum cannot be a secret one, each with what to do instead."""
    federation = config.federation
    if not config.secret:
        return
    excluded = [*_excluded(config), *_too_few(federation)]
    for why, cure in excluded:
        yield (
            f"federation.secret={federation.secret} cannot hold {why}: {cure}, or set federation.secret=off."
        )
    asked = federation.asked
    if excluded or not _typed(config, "min_replies"):
        return
    if federation.min_replies < (least := threshold_of(federation, asked)):
        yield (
            f"federation.min_replies={federation.min_replies} is below the {least} of {asked} sites that open a "
            f"secret sum with {colluders_of(federation, asked)} colluders: leave it out, or set it to {least}."
        )


def _typed(config: Config, key: str) -> bool:
    return f"federation.{key}" in config.origin


def _excluded(config: Config) -> Iterator[tuple[str, str]]:
    """Yield why a secret sum cannot be, each with what to do."""
    federation, method = config.federation, config.method
    if not resolve(method).summed:
        yield (
            f"under method={method}, whose sites' parts are not only added up",
            f"choose one of {those_that('summed')}",
        )
    if federation.combines:
        yield (
            f"with federation.robust={federation.robust}, which looks at each update",
            "set federation.robust=none",
        )
    for key in _LOOKS:
        value = getattr(federation, key)
        if _typed(config, key) and value not in ("none", 0):
            yield (
                f"with federation.{key}={value}, which looks at each update",
                "leave it out; federation.secret_clip bounds what a site adds",
            )
    bounded = config.privacy.counts == "public" or _typed(config, "max_examples")
    if getattr(config.settings, "weighting", "") == "counts" and not (bounded or config.private):
        yield (
            f"with {config.section}.weighting=counts, by which a site weighs as much as it claims, unseen",
            "leave it out, set privacy.counts=public, or set federation.max_examples to the most that a site has",
        )
    if config.wire.weights != "float32":
        yield (
            f"with wire.weights={config.wire.weights}, which codes each update by itself",
            "leave it out",
        )
    if config.compute.batched != "off":
        yield (
            f"with compute.batched={config.compute.batched}, which trains sites together",
            "leave it out",
        )
    if config.judged_at_sites:
        yield (
            f"with {config.judged_at_sites}, which has each site report its own figures",
            "set evaluation.on=server, with data.validation_at=server",
        )
    if method == "ridge":
        yield from _of_ridge(config)
    if config.private:
        yield from _of_noise(config)


def _of_noise(config: Config) -> Iterator[tuple[str, str]]:
    known = resolve(config.method)
    if not known.noised:
        yield (
            f"with noise (privacy.noise_multiplier) under method={config.method}: shares of it are for "
            f"{those_that('noised')}",
            "leave privacy.noise_multiplier at 0",
        )
    if config.privacy.epsilon:
        yield (
            f"with privacy.epsilon={config.privacy.epsilon:g}, which is planned for another noise than Skellam's",
            "set privacy.noise_multiplier",
        )
    if known.noised and known.averages and "privacy.clip" in config.origin:
        yield (
            "with privacy.clip, since no step is private",
            "leave it out: secret_clip is its length",
        )
    if known.noised and known.averages and not _typed(config, "secret_clip"):
        yield (
            "with noise relative to the length that an update is cut to, which is not set",
            "set federation.secret_clip, such as 1",
        )


def _of_ridge(config: Config) -> Iterator[tuple[str, str]]:
    form, keep = (getattr(config.settings, key) for key in ("form", "keep"))
    if form != "integers" and "ridge.form" in config.origin:
        yield f"with ridge.form={form}, whose scales are each site's own", "set ridge.form=integers"
    if getattr(config.settings, "refit", False):
        yield "with ridge.refit=on, which has not been built for it", "set ridge.refit=off"
    if keep != "none" or getattr(config.settings, "forget", ""):
        yield (
            "with ridge.keep=sites and ridge.forget, which need each site's own sums",
            "leave them out, and run again without a site that is to be forgotten",
        )


def _too_few(federation: FederationSettings) -> Iterator[tuple[str, str]]:
    asked, colluders = federation.asked, federation.secret_colluders
    if not LEAST <= asked <= MOST:
        yield (
            f"where a round asks {asked} sites, and a sum is of {LEAST} to {MOST}",
            "change federation.sites or federation.participation",
        )
    if colluders > asked - 2:
        yield (
            f"with federation.secret_colluders={colluders} of {asked} sites, who would know the sum of the others",
            f"set it to {asked - 2} or less",
        )


def switched_off(config: Config) -> Iterator[str]:
    """Yield, in a line each, what a secret sum changes of settings that were not typed."""
    federation = config.federation
    yield (
        "federation.secret: no single update is visible, so that federation.robust=clip and "
        "federation.max_update are off; each site cuts its own to federation.secret_clip="
        f"{federation.secret_clip:g}, and one that sends rubbish spoils the sum"
    )
    if getattr(config.settings, "weighting", "") == "uniform":
        yield f"{config.section}.weighting=uniform: no one can check the weight that a site claims"
    least = threshold_of(federation, federation.asked)
    if federation.min_replies < least:
        yield f"federation.min_replies={federation.min_replies} is raised to {least}, by federation.secret"
