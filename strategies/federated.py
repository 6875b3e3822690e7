"""What Nectar's loop, a round and a record ask of any strategy, one of Nectar's methods or one of Flower's.

``Federated`` is a Flower Strategy that knows its sites, is asked what it believes of a reply, and says what it learned,
shows and keeps. What is written here holds where a strategy says nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from common.errors import FederationError, PayloadError
from common.learning.run import Run
from common.privacy.ledger import RECORD
from common.sites import SUPERLINK, Site, engine_of
from common.specs.updates import DATA, MEMORY_LOST, OTHER_DATA, OTHER_ROUNDS, WENT_BACK
from common.wire.bundle import Bundle
from common.wire.codec import Payload
from common.wire.display_contrast import Contrast
from common.wire.synthetic_images import SyntheticImages
from common.wire.weights import Weights
from strategies.exchange.judging import STATISTICS, LengthHistory, Shortening, Trials
from strategies.exchange.replies import Outcome, Spending, Upload
from strategies.exchange.roll_call import Question, wait_for_sites
from strategies.exchange.round import Evaluation, Round
from strategies.exchange.rules import Bound

logger = getLogger("flwr")

_SPENDING, _LENGTHS = "spending", "update-lengths"

#: the part of a bundle that is a model
_WEIGHTS = "weights"

#: the name of the one model that most methods learn, and where a strategy keeps several
GLOBAL, LEARNED = "", "learned"

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
    #: the records that a reply may hold; None for any
    records: ClassVar[Collection[str] | None] = frozenset({"arrays", "metrics", "about", RECORD})
    #: whether an update that is longer than the others' is shortened (``federation.robust``)
    clips: ClassVar[bool] = True
    #: how ``pictures`` are to be looked at
    contrast: ClassVar[Contrast] = "pixels"

    def __init__(self, run: Run, record_id: str = "run") -> None:
        self.run = run
        self.record_id = record_id
        self.members = Members(run.config.federation.sites)
        self.trials = Trials(run)

    # ---- what of a reply is believed ------------------------------------------------------------------

    @abstractmethod
    def bounds(self) -> Mapping[str, Bound]:
        """Return what is believed of each part that the sites send, by the part's name; empty for one that is alone.

        A name covers the parts of a bundle of that name. A run whose sites are to send another part is refused.
        """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Return a validated upload as ``update`` is to get it.

        Raises
        ------
        PayloadError
            If it cannot be used although it is well-formed; the reply is rejected for this reason.
        """
        return upload

    def leads_to(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the model that a prepared upload alone would lead to, by which it is judged; None where there is none.

        What is returned is held against the other uploads' lengths (``federation.max_update``) and must give finite
        outputs. A method whose sites send weights, or updates, says here what they come to.
        """
        return None

    def shortened(self, upload: Upload, shortening: Shortening) -> Upload:
        """Return a prepared upload that leads as far as ``shortening`` lets it.

        As it is written here it serves payloads that are weights, alone or as the part ``weights`` of a bundle.

        Raises
        ------
        PayloadError
            If it is none of these; then it is rejected.
        """
        payload = upload.payload
        name = _WEIGHTS if shortening.part in ("", STATISTICS) else shortening.part
        long = payload.parts.get(name) if isinstance(payload, Bundle) else payload
        if not isinstance(long, Weights):
            raise PayloadError(
                f"it is longer than federation.clip allows, and {type(self).__name__}.shortened does not shorten it"
            )
        shorter: Payload = shortening.of(long)
        if isinstance(payload, Bundle):
            shorter = Bundle({**payload.parts, name: shorter})
        return replace(upload, payload=shorter)

    def start_of(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return what a site's model began the round with, and its architecture as `Run.with_model` takes it.

        Uploads are compared with those of the same architecture.
        """
        return weights, GLOBAL

    def quorum(self, asked: int) -> int:
        """Return how many of so many sites that were asked have to be accepted, or the run stops."""
        return min(self.run.config.federation.min_replies, asked)

    # ---- what is learned, shown and kept --------------------------------------------------------------

    def learned(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return what was learned by name: the models whose mean figures are a round's, the weights where not said.

        A method with several keeps them under ``LEARNED`` in its ``state_dict``, by name, as mappings of tensors. One
        named as one of the settings' ``models`` has its architecture, any other the run's own.
        """
        return {GLOBAL: arrays}

    def beside(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return models by name that are judged beside what was learned, and count in no figure of the round's."""
        return {}

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the images that the last round's sites sent, for the record to draw."""
        return {}

    def notes(self) -> Mapping[str, Any]:
        """Return what the last round's line in the record says beside its figures: plain data, as JSON has it."""
        return {}

    def state_dict(self) -> State:
        """Return what a checkpoint must hold besides the weights."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take back what ``state_dict`` returned."""
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
        """Take back what ``checkpoint`` returned."""
        if _SPENDING in state:
            self.members.spending.put_back(state[_SPENDING])
        if _LENGTHS in state:
            self.members.lengths.put_back(state[_LENGTHS])
        own = {n: kept for n, kept in state.items() if n not in (_SPENDING, _LENGTHS)}
        self.load_state_dict(own)

    # ---- who takes part, and the round that they are in -----------------------------------------------

    @property
    def sites(self) -> list[Site]:
        """The sites that are there, in site order."""
        return self.members.sites

    @property
    def outcome(self) -> Outcome:
        """What became of the round's replies."""
        return self.members.outcome

    @property
    def round(self) -> Round:
        """The round whose replies are awaited: of a method and of the one around it, the same."""
        if self.members.round is None:
            raise RuntimeError("there is no round yet: configure_train, or begin, comes first")
        return self.members.round

    def begin(self, server_round: int, weights: Weights) -> Round:
        """Begin a round, of which nothing is known yet, and return it."""
        self.members.outcome = Outcome()
        self.members.round = Round(self, server_round, weights)
        return self.members.round

    @property
    def max_reply_bytes(self) -> list[int]:
        """The most bytes of arrays in the reply to each of ``configure_train``'s messages, in their order."""
        return self.round.max_reply_bytes

    def ensure_roll_call(self, grid: Grid) -> None:
        """Make the roll call unless the loop has made it (as under Flower's own ``start``)."""
        if not self.sites:
            federation = self.run.config.federation
            there = wait_for_sites(
                grid,
                federation.sites,
                self.question,
                deadline=federation.join_deadline,
                min_replies=federation.min_replies,
            )
            self.members.sites, self.members.left_out = there.sites, there.left_out
            self.members.refused = set(there.refused)

    @property
    def judged_from_memory(self) -> bool:
        """Whether sites judge with what they remember: running statistics, or models of their own."""
        return self.run.config.model.statistics == "local"

    @property
    def question(self) -> Question:
        """What the roll call asks."""
        config = self.run.config
        return Question(
            len(self.run.info.classes) if self.needs_class_counts else 0,
            bool(config.judged_at_sites),
            config.federation.max_examples,
            self.members.spending.heads,
            folders=bool(config.images.sites),
        )

    # ---- Flower's hooks that all of them share --------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Compose the evaluation of the weights on the sites' held-out shares, if the run wants one."""
        if not self.run.config.judged_at_sites:
            return []
        self.ensure_roll_call(grid)
        rejected, long = self.outcome.rejected, self.members.lengths.long
        asked = [
            site
            for site in self.sites
            if site.name not in rejected or long.get(site.name) == server_round
        ]
        self.members.evaluation = evaluation = Evaluation(self.outcome, asked)
        fields = {**config, "server-round": server_round, "record": self.record_id}
        fields |= self.members.began
        taken = self.members.taken if self.judged_from_memory else None
        learned = list(self.learned(arrays).values())
        judged = learned[0] if len(learned) == 1 else arrays
        return evaluation.compose(self.run, judged, fields, taken)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the sites' mean figures, each site counting the images that it said it holds out."""
        evaluation = self.members.evaluation or Evaluation(self.outcome, self.sites)
        classes = len(self.run.info.classes)
        return evaluation.mean(server_round, replies, classes, any_record=self.records is None)

    def summary(self) -> None:
        """Log the method, and which of its settings depart from its defaults."""
        settings = self.run.config.settings
        usual = {name: field.default for name, field in type(settings).model_fields.items()}
        own = [f"{k}={v}" for k, v in settings.model_dump().items() if v != usual.get(k)]
        logger.info("%s: %s", self.run.config.method, ", ".join(own) or "its defaults")


# ---- members -------------------------------------------------------------------------------------
# Who takes part in a run, and what became of a round's replies: one for a method and for the methods inside it.


@dataclass
class Members:
    """The sites of a run.

    Parameters
    ----------
    counted_on : int
        The number of sites that the operator counts on.
    sites : list of Site
        Those that are there, in site order.
    refused : set of int
        The nodes that the roll call refused.
    left_out : mapping of int to str
        Why nodes that were there at the beginning take no part.
    were_there : set of str
        The names of all sites that have been there.
    round : Round or None
        The one whose replies are awaited; None between rounds.
    outcome : Outcome
        What became of the round's replies.
    evaluation : Evaluation or None
        Who was asked about a round's weights, until the next ones are.
    taken : dict of str to int
        The round of each site's work that was last taken: its memory goes on from there.
    taken_here : set of str
        The sites of which this process took work: what these remember of it they wrote since it began.
    spending : Spending
        What the sites were charged for their privacy, and the heads of their ledgers.
    lengths : LengthHistory
        How long the updates of earlier rounds were.
    data : mapping of str to str
        The checksums of the data that the run began with: of a simulated site's folder by its name, else of "".
    """

    counted_on: int
    sites: list[Site] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    left_out: Mapping[int, str] = field(default_factory=dict)
    were_there: set[str] = field(default_factory=set)
    round: Round | None = None
    outcome: Outcome = field(default_factory=Outcome)
    evaluation: Evaluation | None = None
    taken: dict[str, int] = field(default_factory=dict)
    taken_here: set[str] = field(default_factory=set)
    spending: Spending = field(default_factory=Spending)
    lengths: LengthHistory = field(default_factory=LengthHistory)
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def began(self) -> dict[str, str]:
        """What an instruction says of the data that the run began with: nothing where each site has its own."""
        divided = [*self.data] == [""] and any(site.data for site in self.sites[:1])
        return {DATA: self.data[""][:16]} if divided else {}

    def require_memory(self, site: Site, said: str = OTHER_ROUNDS) -> None:
        """Stop a simulation one of whose devices lacks what it wrote in this very run, or reads other data.

        A real site may have lost its memory, and the run goes on without. A simulated device has not: it works on
        another machine of the cluster than before, and so would the others, round for round.
        """
        # By all of them: a site says itself what it is a node of.
        simulated = engine_of([*self.sites, site]) != SUPERLINK
        if simulated and said.startswith(OTHER_DATA):
            raise FederationError(said)
        if simulated and site.name in self.taken_here and said.startswith(OTHER_ROUNDS):
            raise FederationError(
                f"{site.name} lacks what it remembered of its round {self.taken[site.name]} of this run: the machines "
                "that simulate it do not share the run's record, in which that lies; name a folder that all of them "
                "share (output-dir=/shared/runs), or simulate on one machine"
            )

    def tell_memory(self, server_round: int, upload: Upload) -> None:
        """Log what a site says of its memory where that is not what this run's last round left."""
        site, figures = upload.site.name, upload.metrics
        if MEMORY_LOST in figures:
            self.require_memory(upload.site)
            logger.warning(
                "round %d: %s no longer has what it remembered and began afresh", server_round, site
            )
        if WENT_BACK in figures:
            logger.warning(
                "round %d: %s has been at round %.0f of this run, and went back with the server to its round %d: the "
                "record is older than what the site has seen of it",
                *(server_round, site, figures[WENT_BACK], self.taken.get(site, 0)),
            )
