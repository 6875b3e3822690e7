"""What Nectar's loop, a round and a record ask of any strategy, one of Nectar's methods or one of Flower's.

``Federated`` is a Flower Strategy that knows its sites, decides what it accepts of a reply, and returns what it
learned, shows and keeps. These are the defaults.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from logging import getLogger
from types import MappingProxyType
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from common.errors import FederationError, PayloadError
from common.learning.run import Run
from common.privacy.ledger import RECORD
from common.sites import Site
from common.wire.bundle import Bundle
from common.wire.form import Payload
from common.wire.image_codecs import Contrast
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.exchange import Traffic
from strategies.exchange.instructions import Serialiser, weights_from
from strategies.exchange.membership import Members, Question, wait_for_sites
from strategies.exchange.open_round import OpenRound
from strategies.exchange.replies import Outcome, Upload
from strategies.exchange.rules import GLOBAL, STATISTICS, Clipping, Rule
from strategies.exchange.screening import FiniteCheck

logger = getLogger("flwr")

#: the part of a bundle that is a model
_WEIGHTS = "weights"

_SPENDING, _LENGTHS = "spending", "update-lengths"

#: where a strategy that learns several models keeps them
LEARNED = "learned"

#: what a strategy keeps between rounds: tensors, arrays, numbers, texts, and lists and mappings of them
State = Mapping[str, Any]


class Federated(FlowerStrategy):
    """A strategy over named sites.

    Parameters
    ----------
    record_id : str
        Names the run to its devices, which keep their state under it.
    """

    #: whether the roll call asks the sites for their class counts
    needs_class_counts = False
    #: how ``pictures`` are to be looked at
    contrast: ClassVar[Contrast] = "pixels"
    #: whether there are sites to be asked
    asks_sites = True
    #: the records that a reply may hold; None for any
    records: ClassVar[Collection[str] | None] = frozenset({"arrays", "metrics", "about", RECORD})
    #: whether an update that is longer than the others' is shortened (``federation.robust``)
    clips: ClassVar[bool] = True

    def __init__(self, run: Run, record_id: str = "run") -> None:
        self.run = run
        self.record_id = record_id
        self.members = Members(run.config.federation.sites)
        # The round's account, for what a method exchanges in addition to its replies.
        self.traffic: Traffic | None = None
        #: the check of an architecture's models, as `Run.with_model` takes it; built when it is first needed
        self.finite_check = cache(lambda model: FiniteCheck(run.with_model(model)))

    # ---- what is accepted of a reply ------------------------------------------------------------------

    @abstractmethod
    def validation_rules(self) -> Mapping[str, Rule]:
        """Return the rule for each part that the sites send, by the part's name; the empty name if there is one part.

        A name covers all parts of a bundle of that name. A run whose sites would send a part without a rule is refused.
        """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Return a validated upload as ``update`` gets it.

        Raises
        ------
        PayloadError
            If it cannot be used although it is well-formed; the reply is rejected for this reason.
        """
        return upload

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the model that would result from this prepared upload alone; None if it does not make a model.

        The model must give finite outputs, and its distance from the round's weights is compared with the others'
        (``federation.max_update``). A method whose sites send weights or updates overrides this.
        """
        return None

    def clipped(self, upload: Upload, clipping: Clipping) -> Upload:
        """Return a prepared upload, shortened as ``clipping`` says.

        The default serves payloads that are weights, alone or as the part ``weights`` of a bundle.

        Raises
        ------
        PayloadError
            If the payload is neither; the reply is then rejected.
        """
        payload = upload.payload
        name = _WEIGHTS if clipping.part in ("", STATISTICS) else clipping.part
        long = payload.parts.get(name) if isinstance(payload, Bundle) else payload
        if not isinstance(long, Weights):
            raise PayloadError(
                f"it is longer than federation.clip allows, and {type(self).__name__}.clipped does not shorten it"
            )
        shorter: Payload = clipping.of(long)
        if isinstance(payload, Bundle):
            shorter = Bundle({**payload.parts, name: shorter})
        return replace(upload, payload=shorter)

    def initial_model(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return the weights that a site's model started the round with, and its architecture for `Run.with_model`.

        Uploads are compared within one architecture.
        """
        return weights, GLOBAL

    def quorum(self, asked: int) -> int:
        """Return how many replies must be accepted, of so many sites ``asked``, or the run stops."""
        return min(self.run.config.federation.min_replies, asked)

    # ---- what is learned, shown and kept --------------------------------------------------------------

    def global_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the global models by name; a round's figures are their mean. The default is the weights alone.

        A method with several keeps them under ``LEARNED`` in its ``state_dict``, by name, as mappings of tensors. A
        model named in the settings' ``models`` has that architecture, any other the run's own.
        """
        return {GLOBAL: arrays}

    def extra_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return further models by name, which are evaluated but do not count in the round's figures."""
        return {}

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the images that the last round's sites sent, for the record to draw."""
        return {}

    def notes(self) -> Mapping[str, Any]:
        """Return what the last round's line in the record holds besides its figures: plain data, as JSON has it."""
        return {}

    def state_dict(self) -> State:
        """Return the state that a checkpoint holds besides the weights."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned."""
        if state:
            raise FederationError(
                f"{type(self).__name__} keeps no state, the checkpoint holds some"
            )

    def checkpoint(self) -> State:
        """Return ``state_dict``, what the sites were charged and how long their updates were."""
        kept = {
            _SPENDING: self.members.spending.state(),
            _LENGTHS: self.members.lengths.state(),
        }
        return {**self.state_dict(), **{name: state for name, state in kept.items() if state}}

    def restore(self, state: State) -> None:
        """Restore what ``checkpoint`` returned."""
        if _SPENDING in state:
            self.members.spending.put_back(state[_SPENDING])
        if _LENGTHS in state:
            self.members.lengths.put_back(state[_LENGTHS])
        own = {n: kept for n, kept in state.items() if n not in (_SPENDING, _LENGTHS)}
        self.load_state_dict(own)

    @property
    def derived_by(self) -> Sequence[str]:
        """The settings in use, by dotted key, by which ``resume`` makes a new record of another one's checkpoint."""
        return ()

    def derive(self) -> Collection[str]:
        """Make of what was restored what a new record begins with; return whose work it is, by the sites' names."""
        return ()

    # ---- who takes part, and the round that they are in -----------------------------------------------

    @property
    def sites(self) -> list[Site]:
        """The sites that are there, in site order."""
        return self.members.sites

    @property
    def outcome(self) -> Outcome:
        """The outcome of the round's replies."""
        return self.members.outcome

    @property
    def round(self) -> OpenRound:
        """The round whose replies are awaited: of a method and of the one around it, the same."""
        if self.members.round is None:
            raise RuntimeError("there is no round yet: configure_train, or begin, comes first")
        return self.members.round

    def begin(self, server_round: int, weights: Weights) -> OpenRound:
        """Begin a round, of which nothing is known yet, and return it."""
        self.members.outcome = Outcome()
        self.members.round = open_round = OpenRound(self, server_round, weights)
        return open_round

    @property
    def is_learning(self) -> bool:
        """Whether a round like the last one can change what is learned: ``evaluation.patience`` counts no other."""
        return True

    def require_going_on(self) -> None:
        """Raise FederationError where no round is to follow the one that has just been recorded."""

    def ensure_roll_call(self, grid: Grid) -> None:
        """Make the roll call unless the loop has made it (as under Flower's own ``start``), or no site takes part."""
        if not self.sites and self.asks_sites:
            federation = self.run.config.federation
            there = wait_for_sites(
                grid,
                federation.min_replies if self.derived_by else federation.sites,
                self.question,
                deadline=federation.join_deadline,
                min_replies=federation.min_replies,
            )
            self.members.sites = there.sites
            self.members.left_out = {**there.refused, **there.silent}
            self.members.refused = set(there.refused)

    @property
    def judged_from_memory(self) -> bool:
        """Whether sites evaluate with what they remember: a part of the model, or their own models."""
        return self.run.config.model.stays_in_part

    @property
    def question(self) -> Question:
        """The question of the roll call."""
        config = self.run.config
        return Question(
            len(self.run.info.classes) if self.needs_class_counts else 0,
            bool(config.judged_at_sites),
            config.federation.max_examples,
            self.members.spending.ledger_tips,
            folders=bool(config.site_places),
        )

    # ---- Flower's hooks that all of them share --------------------------------------------------------

    def ask_for_evaluation(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Have the sites evaluate the weights on what they hold out, if the run wants it, with what they get next."""
        if not self.run.config.judged_at_sites:
            return
        rejected, long = self.outcome.rejected, self.members.lengths.long
        asked = [
            site
            for site in self.sites
            if site.name not in rejected or long.get(site.name) == server_round
        ]
        learned = list(self.global_models(arrays).values())
        judged = learned[0] if len(learned) == 1 else arrays
        about = {"server-round": server_round, "record": self.record_id}
        self.members.evaluation = EvaluationRequest(
            server_round,
            self.outcome,
            asked,
            self.run.config.evaluation.measure,
            arrays=Serialiser([*judged.values()]).record(weights_from(self.run, judged)),
            fields={**config, **about, **self.members.data_fields},
            taken=self.members.last_accepted_round if self.judged_from_memory else None,
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Compose the evaluation of the weights on the sites' held-out shares, if the run wants one."""
        self.ensure_roll_call(grid)
        self.members.evaluation = EvaluationRequest(server_round)
        self.ask_for_evaluation(server_round, arrays, config)
        return self.members.evaluation.messages()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the sites' mean figures, each site counting the images that it said it holds out."""
        classes = len(self.run.info.classes)
        return self.members.evaluation.mean(replies, classes, any_record=self.records is None)

    def summary(self) -> None:
        """Log the method, and which of its settings depart from its defaults."""
        settings = self.run.config.settings
        usual = {name: field.default for name, field in type(settings).model_fields.items()}
        own = [f"{k}={v}" for k, v in settings.model_dump().items() if v != usual.get(k)]
        logger.info("%s: %s", self.run.config.method, ", ".join(own) or "its defaults")
