"""FedVAE on the server: FedAvg's average, of what each of FedDPMS' two stages trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from common.learning.run import Run
from common.settings.feddpms import FedVAESettings
from common.sites import Site
from common.specs.feddpms import PRELIMINARY, SECONDARY, initial_vae, shared_spec
from common.wire.weights import Weights
from strategies.base import Instruction, State
from strategies.exchange.replies import Upload
from strategies.fedavg import FedAvg

_STAGE = "preliminary-rounds"


class FedVAE(FedAvg):
    """Averages encoder and classifier; the variance of the codes only while it is trained."""

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        initial_vae(run)
        settings = run.settings(FedVAESettings)
        self.shared = shared_spec(run)
        self.last_preliminary = settings.preliminary(run.config.rounds)  # T_p

    def is_preliminary(self, server_round: int) -> bool:
        """Return whether ``server_round`` is one of the first T_p, of the run's initial number of rounds."""
        return server_round <= self.last_preliminary

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send what the stage trains, expect it trained."""
        if self.is_preliminary(server_round):
            what = Instruction(PRELIMINARY, weights, self.run.spec)
        else:
            what = Instruction(SECONDARY, weights.only(self.shared), self.shared)
        return {site.name: what for site in sites}

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's model; the variance keeps its old value if it was not sent."""
        return self.model_of(upload).over(weights)

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Average what came; the variance does not change in the second stage."""
        trained = self.is_preliminary(server_round)
        averaged = weights if trained else weights.only(self.shared)
        return super().update(server_round, averaged, uploads).over(weights)

    def state_dict(self) -> State:
        """Return T_p, which does not change when a run is continued for more rounds."""
        return {_STAGE: self.last_preliminary}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self.last_preliminary = int(state[_STAGE])
