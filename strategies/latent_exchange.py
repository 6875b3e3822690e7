"""FedDPMS' bookkeeping (Algorithm 2): who has shared, who has been helped by whom, and who lacks what."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.sites import site_order
from common.specs.names import MEMORY_LOST
from common.wire.latent_means import LatentMeans
from strategies.exchange.replies import Outcome
from strategies.federated import State
from synth.latent_sharing import best_match


class LatentExchange:
    """Each site helps once and is helped once, by the replies that were taken.

    Attributes
    ----------
    shared : dict of str to LatentMeans
        Z_j of the sites that have shared (A); its labels are C_j.
    helped : dict of str to str
        Who helped each site that has been helped (B).
    scarce : dict of str to tuple of int
        H_i of the sites that have told it and are not helped yet.
    asked : dict of str to int
        How often each site was asked to share. A reply that is lost has left the site all the same.
    """

    def __init__(self) -> None:
        self.shared: dict[str, LatentMeans] = {}
        self.helped: dict[str, str] = {}
        self.scarce: dict[str, tuple[int, ...]] = {}
        self.asked: dict[str, int] = {}
        self._out: dict[str, str] = {}

    def match(self, site: str) -> str | None:
        """Return who is to help ``site`` this round, and note it; None where nobody is."""
        if site in self.helped or site not in self.scarce:
            return None
        abundant = {j: self.classes_of(j) for j in sorted(self.shared, key=site_order)}
        found = best_match(site, self.scarce[site], abundant)
        if found is not None:
            self._out[site] = found
        return found

    def ask(self, site: str) -> bool:
        """Tell whether ``site`` is to share this round, and count it."""
        if site in self.shared:
            return False
        self.asked[site] = self.asked.get(site, 0) + 1
        return True

    def classes_of(self, site: str) -> list[int]:
        """Return C_j, as far as the site has sent a mean of them."""
        return sorted(set(self.shared[site].labels.tolist()))

    def overall(self, site: str) -> LatentMeans:
        """Return what ``site`` shared with the mean over all that all sites shared instead of each vector."""
        told = self.shared[site]
        everything = torch.cat([means.vectors for means in self.shared.values()])
        return LatentMeans(everything.mean(0).repeat(len(told.labels), 1), told.labels, told.codec)

    def settle(
        self,
        outcome: Outcome,
        shared: Mapping[str, LatentMeans],
        scarce: Mapping[str, tuple[int, ...]],
    ) -> dict[str, str]:
        """Take note of a round's accepted replies and return the matches that came about: helped site -> helper.

        Parameters
        ----------
        shared, scarce : mapping
            What came beside the models, by site.
        """
        accepted = outcome.accepted
        self.shared |= {site: means for site, means in shared.items() if site in accepted}
        for site in (site for site in accepted if MEMORY_LOST in accepted[site]):
            self.helped.pop(site, None)  # what it had been given is gone
        came_about = {i: j for i, j in self._out.items() if i in accepted}
        self.helped |= came_about
        self.scarce |= {site: classes for site, classes in scarce.items() if site in accepted}
        self.scarce = {i: classes for i, classes in self.scarce.items() if i not in self.helped}
        self._out.clear()
        return came_about

    def state_dict(self) -> State:
        """Return it all, as a checkpoint holds it."""
        return {
            "vectors": {site: means.vectors for site, means in self.shared.items()},
            "labels": {site: means.labels for site, means in self.shared.items()},
            "helped": dict(self.helped),
            "scarce": {site: list(classes) for site, classes in self.scarce.items()},
            "asked": dict(self.asked),
        }

    def load_state_dict(self, state: State) -> None:
        """Take it back."""
        vectors, labels = state["vectors"], state["labels"]
        self.shared = {site: LatentMeans(vectors[site], labels[site]) for site in vectors}
        self.helped, self.asked = dict(state["helped"]), dict(state["asked"])
        self.scarce = {site: tuple(classes) for site, classes in state["scarce"].items()}
