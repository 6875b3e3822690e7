"""The settings of FedAvg, and of the methods whose sites train as its do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from common.settings.base import Disclosure, Settings, Switch, setting

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


AT_SITES: Mapping[str, Any] = {"evaluation.on": "sites", "data.site_holdout": 0.25}
"""PFLlib's split, too: three quarters of a site's examples to learn from, a quarter to evaluate with."""

OWN_MODELS = ("fedper", "fedrep", "fedbn", "ditto", "finetune", "fedmd")
"""The methods whose sites have models of their own, which no other method has inside it."""


class TrainingSettings(Settings):
    """Local training; batch, epochs and lr are in the search of the FedDM paper's baselines."""

    epochs: int = setting(
        10, "passes over the site's images a round", symbol="E", ge=1, amount="epochs"
    )
    lr: float = setting(0.01, "learning rate", symbol="eta", gt=0)
    batch: int = setting(256, "images a step", symbol="B", ge=1)
    momentum: float = setting(0.0, "momentum of SGD; Adam has its own", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay", ge=0)
    local_optimizer: Literal["sgd", "adam"] = setting(
        "sgd", "what takes the steps: torch's SGD, or its Adam with the usual betas"
    )
    lr_decay: float = setting(
        1.0, "factor of the learning rate, every lr_decay_every rounds", gt=0, le=1
    )
    lr_decay_every: int = setting(1, "rounds from one decay of the learning rate to the next", ge=1)
    clip_norm: float = setting(
        0.0, "longest gradient of the loss, longer ones are scaled down to it; 0: any", ge=0
    )

    gradient_noise: float = setting(
        0.0,
        "a study: standard deviation of normal noise on each number of a step's gradient; no privacy rests on it",
        source="Fedssyn's Eq. A.6",
        ge=0,
        later=True,
    )
    augment: Literal["none", "flip_crop"] = setting(
        "none",
        "what a step does to each image again; flip_crop: a crop of it within 4 reflected pixels, half flipped",
    )

    trains_alone: ClassVar[bool] = False
    """Whether a site's one training a round is all that it releases."""

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return the rate and number of a training's steps, as `common.learning.steps` plans them."""
        if not vars(type(self)).get("trains_alone"):  # what inherits it may release more
            return None
        from common.learning.steps import DPSGDSteps

        plan = DPSGDSteps.plan(self.batch, self.epochs, max(1, round(examples * (1 - held))))
        return plan.rate, plan.steps

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse to clip a noised gradient again, and to begin without the number of steps."""
        if self.clip_norm:
            return (
                f"privacy.clip bounds each example's gradient, and clip_norm={self.clip_norm:g} would scale the noisy "
                "sum of them: leave it at 0"
            )
        if privacy.counts == "one" and not privacy.examples:
            return (
                "the steps of a site follow its number of examples, which privacy.counts=one keeps private: set "
                "privacy.examples to the number that every site is taken to have, or privacy.counts=public where "
                "their own are no secret"
            )
        return ""

    def lr_in(self, server_round: int) -> float:
        """Return the learning rate of a round, which count from 1."""
        return self.lr * self.lr_decay ** ((server_round - 1) // self.lr_decay_every)


OWN_LAYERS = "The layers in model.personal never left their site."


# McMahan et al., 2017
class FedAvgSettings(TrainingSettings):
    """Sites train the model by SGD; the server averages what comes back."""

    trains_alone: ClassVar[bool] = True

    sends: ClassVar[Disclosure] = Disclosure("weights", update=True)
    """What leaves a device, where no setting decides it; a subclass that sends something else states its own."""

    weighting: Literal["counts", "uniform"] = setting(
        "counts", "a site's weight in the average: its number of images, or one"
    )
    class_weights: Literal["none", "balanced"] = setting(
        "none",
        "balanced: each class counts as much in a site's loss, however many examples it has",
        later=True,
    )
    server_optimizer: Literal["sgd", "adam", "yogi"] = setting(
        "sgd",
        "what takes the server's step along the mean update (Reddi et al., 2021)",
    )
    server_lr: float = setting(
        1.0, "learning rate of the server's step; 1 under sgd takes the mean", symbol="eta_g", gt=0
    )
    server_momentum: float = setting(
        0.0, "momentum of the server's sgd: 0.9 is FedAvgM (Hsu et al., 2019)", ge=0, lt=1
    )
    server_tau: float = setting(
        0.001, "adaptivity of the server's adam and yogi", symbol="tau", gt=0
    )

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return self.sends


class CentralSettings(FedAvgSettings):
    """The server trains on the union of the sites' shares, as many steps a round as they would take together."""

    comment = "This is not federated learning: the server trains on the union of all sites' data, as an upper bound."

    sends = Disclosure("nothing", update=False)


class LocalSettings(FedAvgSettings):
    """Every site trains its own model; the server evaluates them all and averages nothing."""

    comment = "The server evaluates each site's model and passes it on to no other site."

    trains_alone: ClassVar[bool] = True


# Li et al., 2020
class FedProxSettings(FedAvgSettings):
    """Sites train as under FedAvg, with a proximal term that pulls them to the round's weights."""

    trains_alone: ClassVar[bool] = True

    mu: float = setting(
        0.01, "strength of the pull to the round's weights", symbol="mu", source="Li et al.", ge=0
    )


# Wang et al., 2020
class FedNovaSettings(FedAvgSettings):
    """Sites train by SGD; the server averages updates normalised by the number of local steps."""

    trains_alone: ClassVar[bool] = True

    local_optimizer: Literal["sgd"] = setting(
        "sgd", "what takes the steps: SGD, whose steps the normalizer adds up"
    )
    mu: float = setting(
        0.0, "strength of a pull to the round's weights, as FedProx has it", symbol="mu", ge=0
    )

    @model_validator(mode="after")
    def _no_clip(self) -> Self:
        if self.clip_norm:
            raise ValueError(
                f"clip_norm={self.clip_norm:g} shortens some gradients and not others, which the normalizer of the "
                "site's steps does not know: set clip_norm=0, or choose another method"
            )
        return self


# Acar et al., 2021
class FedDynSettings(FedAvgSettings):
    """Sites train with dynamic regularisation, so that their optima and the federation's agree."""

    trains_alone: ClassVar[bool] = True

    weighting: Literal["counts", "uniform"] = setting(
        "uniform", "a site's weight in the average: its number of images, or one"
    )
    alpha: float = setting(
        0.01, "strength of the dynamic regulariser", symbol="alpha", source="Acar et al.", ge=0
    )

    @model_validator(mode="after")
    def _the_servers_step_is_its_own(self) -> Self:
        if (self.server_optimizer, self.server_lr, self.server_momentum) != ("sgd", 1.0, 0.0):
            raise ValueError(
                "server_optimizer, server_lr and server_momentum would move the weights and not the server's h, which "
                "then part: set server_optimizer=sgd, server_lr=1 and server_momentum=0"
            )
        return self


# Li et al., 2021
class MOONSettings(FedAvgSettings):
    """Sites train with a model-contrastive loss; ``model.projection`` gives them the paper's projection head."""

    trains_alone: ClassVar[bool] = True

    mu: float = setting(
        1.0,
        "strength of the contrast",
        symbol="mu",
        source="Li et al.: 5, 1, 10 and 0.1 by data set",
        ge=0,
    )
    temperature: float = setting(0.5, "temperature of the contrast", symbol="tau", gt=0)
    pool: int = setting(
        1, "earlier models of the site that are contrasted with", source="the published code", ge=1
    )


# Yoon et al., 2021
class FedMixSettings(FedAvgSettings):
    """Sites train with mixup against means of other sites' images, to first order."""

    sends = Disclosure("weights and means of images", images=True, labels=True, update=True)

    mix: float = setting(
        0.05, "share of the means in a mixture", symbol="lambda", source="Yoon et al.", ge=0, lt=1
    )
    mean_of: int = setting(
        10, "images behind each mean that leaves a site; the rest gives none", symbol="M_k", ge=2
    )
    means: int = setting(100, "most means that a site sends", ge=1)

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse what no noise covers: means of a few images each."""
        return f"each site sends means of {self.mean_of} of its images, which no noise is put on"

    def remark(self) -> str:
        """Return the reason that the means are unprotected."""
        return f"Every site received the others' means of {self.mean_of} images, which nothing protects."


# Karimireddy et al., 2020
class ScaffoldSettings(FedAvgSettings):
    """Sites train by SGD along gradients corrected by control variates, which are sent both ways."""

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("weights and control variates", update=True)

    weighting: Literal["counts", "uniform"] = setting(
        "uniform", "a site's weight in the average: its number of images, or one"
    )
    local_optimizer: Literal["sgd"] = setting(
        "sgd", "what takes the steps: SGD, whose path control variates are read off"
    )
    option: Literal["I", "II"] = setting(
        "II",
        "a site's new control variate: I, its gradient at the round's weights; II, the mean gradient along its path",
    )

    def corrected(self, names: Sequence[str]) -> list[str]:
        """Return the names of the parameters with control variates: all."""
        return list(names)

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse option I, whose gradient is one of single examples without clip and noise."""
        if self.option == "I":
            return (
                "option=I sends the exact gradient of the site's examples: set option=II, which is computed from what "
                "the private steps lead to"
            )
        return super().unprotected(privacy)


# Li et al., 2023
class FedPVRSettings(ScaffoldSettings):
    """SCAFFOLD on the last layers, FedAvg on the others."""

    trains_alone: ClassVar[bool] = True

    layers: str = setting(
        "head",
        "layers with control variates, by the beginnings of their parameters' names",
        allowed="names and beginnings of names separated by commas, such as head or layer4,fc; none for no layer",
        pattern=r"^[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*$",
    )

    def corrected(self, names: Sequence[str]) -> list[str]:
        """Return the parameters of the chosen layers; ValueError if a model has no such layer."""
        if self.layers == "none":
            return []
        chosen = self.layers.split(",")
        for layer in chosen:
            if not any(_in_layer(name, layer) for name in names):
                there = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
                raise ValueError(f"fedpvr.layers names '{layer}', the model has {there}")
        return [name for name in names if any(_in_layer(name, layer) for layer in chosen)]


def _in_layer(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


# Arivazhagan et al., 2019
class FedPerSettings(FedAvgSettings):
    """Sites train the model; its last layer is each site's own and never leaves it (model.personal)."""

    comment = OWN_LAYERS

    trains_alone: ClassVar[bool] = True
    needed: ClassVar = {"model.personal": "head", **AT_SITES}


# Collins et al., 2021
class FedRepSettings(FedAvgSettings):
    """Sites train their own last layer, then the shared layers (model.personal)."""

    comment = OWN_LAYERS

    head_epochs: int = setting(
        10,
        "passes that train a site's own part, ahead of the epochs of the shared one",
        symbol="tau",
        source="Collins et al.",
        ge=1,
        amount="epochs",
    )
    needed: ClassVar = {"model.personal": "head", **AT_SITES}


# Li et al., 2021
class FedBNSettings(FedAvgSettings):
    """Sites train the model; its normalising layers are each site's own and never leave it (model.personal)."""

    comment = OWN_LAYERS

    trains_alone: ClassVar[bool] = True
    needed: ClassVar = {"model.personal": "norm", "model.norm": "batch", **AT_SITES}


# Li et al., 2021
class DittoSettings(FedAvgSettings):
    """Sites train as under FedAvg, and additionally their own model, which is pulled to the shared one."""

    comment = "The model that a site trains for itself never left it."

    trains_alone: ClassVar[bool] = True

    pull: float = setting(
        1.0, "strength of the pull of a site's own model to the shared one", symbol="lambda", ge=0
    )
    own_epochs: int = setting(
        0,
        "passes that train a site's own model a round; 0: as many as train the shared one",
        symbol="s",
        ge=0,
        amount="epochs",
    )
    needed: ClassVar = AT_SITES


class FinetuneSettings(FedAvgSettings):
    """Sites train as under FedAvg; each evaluates the shared model after training it further on its own images."""

    comment = "The model that a site trains for itself never left it."

    trains_alone: ClassVar[bool] = True

    tuning_epochs: int = setting(
        0,
        "passes over a site's own images that tune the shared model for it; 0: as many as it trains a round",
        ge=0,
        amount="epochs",
    )
    needed: ClassVar = AT_SITES


# Lin et al., 2020
class FedDFSettings(FedAvgSettings):
    """Sites train as under FedAvg; the server distils all their models into the average, on images without labels.

    The images are ``distil``'s. The server trains by ``image_training``; the paper takes Adam and stops by validation.
    """

    comment = "The server distilled the sites' models into one on public images."

    distils: ClassVar[bool] = True
    trains_alone: ClassVar[bool] = True
    trains_on_images: ClassVar[bool] = True


# Li and Wang, 2019
class FedMDSettings(FedAvgSettings):
    """Sites send logits on public images; each learns from the mean of all, and so does the server's model.

    With ``distil.aggregation=entropy`` it is DS-FL. No weights leave a site, which keeps its own model.
    """

    comment = "Whoever has these logits can train a model that answers alike."
    sends = Disclosure("logits on public images", labels=True)

    distils: ClassVar[bool] = True
    trains_alone: ClassVar[bool] = True
    trains_on_images: ClassVar[bool] = True

    digest_epochs: int = setting(
        5,
        "passes over the public images by which a site learns the mean of all answers, ahead of its own images",
        ge=0,
        amount="epochs",
    )
    mechanism: Literal["logits", "training"] = setting(
        "logits",
        "what has noise under privacy.noise_multiplier: the logits, all of a round no longer than privacy.clip "
        "together; or the steps of the training, by DP-SGD",
    )

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return the one release of a round's logits, where these have the noise."""
        return (1.0, 1) if self.mechanism == "logits" else super().private_steps(examples, held)


# Konečný et al., 2016, section 3
class MaskingSettings(FedAvgSettings):
    """Sites train as under FedAvg and send the update at random places, drawn each round.

    The rate is the one at which FedSynth's paper compares; the training is FedAvg's.
    """

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("part of an update", update=True)

    rate: float = setting(
        7.8,
        "the update's numbers over those that are sent, on average: each is sent with probability 1/rate",
        source="FedSynth's comparison",
        ge=1,
    )
    values: Literal["float32", "float16"] = setting("float32", "the type in which numbers are sent")


# Aji and Heafield, 2017
class TopKSettings(FedAvgSettings):
    """Sites train as under FedAvg and send the update's largest numbers with their places.

    The places are paid for out of the same bytes: at one rate top-k costs what masking does and sends
    fewer numbers. The rate is the one at which FedSynth's paper compares; the training is FedAvg's.
    """

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("part of an update", update=True)

    rate: float = setting(
        7.8,
        "bytes of the full update over those that are sent, both in the dtype of topk.values; places count",
        source="FedSynth's comparison",
        ge=1,
    )
    values: Literal["float32", "float16"] = setting("float32", "the type in which numbers are sent")


# PowerSGD, Vogels et al., 2019
class LowRankSettings(FedAvgSettings):
    """Sites train as under FedAvg and send each matrix of the update as two factors of a low rank.

    PowerSGD sums the factors of all workers; here each site sends its own, and the server averages their products. A
    tensor whose factors would not be smaller is sent unchanged, as vectors are.
    """

    trains_alone: ClassVar[bool] = True

    sends = Disclosure("factors of an update", update=True)

    rank: int = setting(4, "columns of the two factors of a matrix", symbol="r", ge=1)
    feedback: Switch = setting(
        True,
        "a site adds to its update what its factors left out the last time that the server took them",
    )
