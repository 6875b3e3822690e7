"""The run-wide sections: what every method shares, networks and data sets included. The only home of their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from pydantic import model_validator

from common.models.registry import MODELS, names
from common.settings.images import ImagesSettings, Listed, Paths
from common.settings.section import Noise, Section, Switch, of_clip, of_noise, setting
from common.wire.image_codecs import BYTES, PATTERN, is_picture

_PER_COLUMN = "a number, or one a column (of series, a channel) with commas between them"

LONGEST = 200
"""Characters of a name that a user gives a run or a group of runs."""

_operational = partial(setting, operational=True)

_name = partial(
    _operational,
    "",
    pattern=rf"^[^\x00-\x1f\x7f]{{0,{LONGEST}}}$",
    allowed=f"a text without control characters, at most {LONGEST} long",
)

_start = partial(
    setting,
    "",
    allowed="an absolute path to a .safetensors, .pth or .pt file, or torchvision:NAME, such as "
    "torchvision:IMAGENET1K_V1",
)

_sha256 = partial(setting, "", pattern=r"^([0-9a-f]{64})?$", allowed="64 hexadecimal digits")


class RunSettings(Section):
    """The run's own keys, which are outside every section."""

    method: str = setting(
        "feddm",
        "how the model is learned",
        allowed="a method's name, or your own Flower strategy or method as package.module:NAME",
    )
    dataset: str = setting(
        "digits",
        "what is learned from",
        allowed="a data set's name; or your own: torchvision:NAME, hf:NAME, package.module:callable, or file, which "
        "data.file=x.npz implies",
    )
    rounds: int = setting(20, "rounds of communication", symbol="R", ge=1)
    seed: int = setting(0, "every draw without a privacy claim derives from it", ge=0, le=2**63 - 1)


_csv, _numbers = partial(setting, only="csv"), partial(setting, only="numbers")


class DataSettings(Section):
    """User-defined data, how training images are divided, and what may leave of pictures that are not public."""

    file: str = setting(
        "",
        "your data set: a .npz file of NumPy's with train_images and train_labels, possibly test_images and "
        "test_labels (or Keras' x_train, ...); or a .csv file, a table",
        allowed="an absolute path to a .npz or .csv file",
    )
    kind: Literal["images", "table", "series"] = setting(
        "images",
        "what the arrays of a file or your function are; table: rows [n, columns], which a .csv file implies; "
        "series: [n, channels, steps]",
    )
    sites: Paths = setting(
        "",
        "simulates sites that hold tables of their own: one site a .csv file, in this order",
        allowed="absolute paths with commas between them",
        later=True,
    )
    columns: Listed = setting(
        "",
        "tables of a site's own: the columns that are learned from, as every site's file names them, in any order and "
        "among others; NAME:a|b is one of categories, each a column of 0 and 1, and one more for any that is not named",
        allowed="names with commas between them, of categories such as region:north|south",
        later=True,
    )
    label: str = _csv(
        "",
        "a .csv file: the column that names each row's class; all others are numbers",
        allowed="a column's name",
    )
    group: str = _csv(
        "",
        "a .csv file: the column that names whom or what each row belongs to, such as a patient: the rows of one are "
        "not divided by test, validation, hold-out or partition; never something to learn from",
        allowed="a column's name",
    )
    owner: str = _csv(
        "",
        "a .csv file: the column that names whose each row is, such as a hospital: each one is a site of "
        "partition.kind=natural. Test and validation may divide an owner's rows unless data.group names it too",
        allowed="a column's name",
        later=True,
    )
    header: Literal["first", "none"] = _csv(
        "first", "a .csv file: the line that names its columns; none: they are called 0, 1, 2, ..."
    )
    axes: Literal["auto", "steps_last", "channels_last"] = setting(
        "auto",
        "series: [n, channels, steps], as auto is, or [n, steps, channels]",
        only="series",
    )
    classes: Literal["auto", "labels"] = setting(
        "auto",
        "your file or function; auto: labels that look measured (dates, fractions, hundreds of numbers) are "
        "refused; labels: each value is a class all the same",
    )
    scale: Literal["none", "minmax", "standard"] = _numbers(
        "none",
        "table, series: what brings values to a common size; minmax: data.low to -1 and data.high to 1; standard: "
        "(value - images.mean) / images.std; by public constants, never computed from a site's data",
    )
    low: Listed = _numbers(
        "",
        "table, series: the least value, to which lower ones are brought; a public bound, such as what an instrument "
        "can show",
        allowed=_PER_COLUMN,
    )
    high: Listed = _numbers("", "the largest value likewise", allowed=_PER_COLUMN)
    size: int = setting(
        0,
        "torchvision, hf, or pictures of your function's: pixels a side that images are brought to, as those of a "
        "folder are; 0: as they are",
        ge=0,
        le=1024,
        amount="size",
        only="pictures",
    )
    test_share: float = setting(
        0.2,
        "share of the training images that becomes the test set where your set or folder brings none; "
        "stratified, drawn by the run's seed, cut before all else",
        ge=0,
        le=0.5,
    )
    images: int = setting(
        0, "training images in use, a stratified draw of the run's seed; 0: all there are", ge=0
    )
    validation: float = setting(
        0.1,
        "share of the training images held back for tuning; stratified, cut first",
        ge=0,
        le=0.5,
    )
    validation_at: Literal["server", "sites"] = setting(
        "server",
        "who has these images; sites: each holds them out of its own examples after the division, and evaluates there",
    )
    validation_cut: Literal["before", "after"] = setting(
        "before",
        "at the server: before the sites' parts are drawn, or after: these are then drawn of all images and lose what "
        "is held back, so that a run with data.validation=0 has the same division",
        later=True,
    )
    site_holdout: float = setting(
        0.0, "share of its own images a site keeps for evaluation", ge=0, le=0.5
    )
    send_originals: Switch = setting(
        False,
        "private pictures (any set but the public ones): let a method send them unchanged, such as real",
    )
    smallest_class: int = setting(
        0,
        "private pictures: images a site must have of each class that it starts with real ones of "
        "(feddm.start=real or mix:K, fedsynth.start=statistics); 0: 20, and twice as many as it sends of the class, or "
        "as K",
        ge=0,
    )

    @property
    def site_files(self) -> tuple[Path, ...]:
        """The simulated sites' own tables; none where a data set is divided."""
        return tuple(map(Path, self.sites.split(","))) if self.sites else ()

    @property
    def keeps_owners(self) -> bool:
        """Whether rows of one owner stay together in every cut; else only the partition goes by them."""
        return not self.owner or bool(self.group)

    @property
    def validated_at_sites(self) -> bool:
        """Whether the sites hold the validation split and evaluate on it."""
        return self.validation_at == "sites" and self.validation > 0

    @property
    def held_by_sites(self) -> float:
        """The share of its own examples that a site holds out."""
        return self.validation if self.validated_at_sites else self.site_holdout


class PartitionSettings(Section):
    """How a data set is divided over simulated sites; a real site's own data is never divided."""

    kind: Literal[
        "dirichlet", "dirichlet_groups", "iid", "by_class", "shards", "quantity", "natural"
    ] = setting(
        "dirichlet",
        "the rule that divides the images over the clients; natural: a writer's, a user's or a group's own; "
        "dirichlet_groups (Lin et al. 2020): shuffled images are dealt to groups of clients, each group divides its "
        "own by dirichlet with balance until every client has half its fair share, and all are cut into equal parts",
    )
    alpha: float = setting(
        0.5,
        "concentration: small is uneven (dirichlet: classes, quantity: sizes)",
        symbol="alpha",
        gt=0,
    )
    balance: Switch = setting(
        True, "dirichlet: a client that holds N/K images gets no more of the class"
    )
    group: int = setting(
        0, "dirichlet_groups: clients in a group; 0: one group of all", ge=0, later=True
    )
    min_size: int = setting(10, "dirichlet(_groups), quantity: images every client must get", ge=0)
    max_draws: int = setting(
        1000, "dirichlet(_groups: of a group), quantity: draws before giving up on sizes", ge=1
    )
    classes_per_client: int = setting(2, "by_class: classes a client holds", ge=1)
    shards_per_client: int = setting(
        2, "shards: runs of images sorted by class a client gets", ge=1
    )


class FederationSettings(Section):
    """Who takes part, and how long the server waits."""

    sites: int = setting(10, "sites in the federation", symbol="K", ge=1)
    participation: float = setting(1.0, "share of the sites asked in a round", gt=0, le=1)
    wave: int = _operational(
        0,
        "messages out at a time; 0: all at once, and under nectar run one, which costs nothing there",
        ge=0,
    )
    min_replies: int = setting(
        1, "valid replies, and answers to the roll call, below which the run stops", ge=1
    )
    max_examples: int = setting(
        10_000_000, "images above which a site's claim is not accepted: it is left out", ge=1
    )
    robust: Literal["clip", "median", "trimmed", "krum", "none"] = setting(
        "clip",
        "what one site can do to the average; clip: an update longer than the others of its round is shortened; "
        "median, trimmed: of each number the median, or the mean without the largest and smallest; krum: the replies "
        "nearest to the others; none: the plain mean. Under median, trimmed and krum each site counts once",
    )
    clip: float = setting(
        7.0,
        "times the usual length of the round's updates beyond which a longer one is shortened to it, or to what was "
        "usual in an earlier round if that is more, where three or more are compared",
        gt=1,
    )
    trim: float = setting(
        0.1,
        "robust=trimmed: share of the replies whose numbers are left out at each end, at least one of three or more",
        gt=0,
        lt=0.5,
    )
    byzantine: int = setting(
        1,
        "robust=krum: hostile sites that a round is to withstand; it takes 2 f + 3 replies",
        symbol="f",
        ge=1,
    )
    kept: int = setting(
        1,
        "robust=krum: replies whose mean is taken, those nearest to the others; above 1 it is Multi-Krum",
        symbol="m",
        ge=1,
    )
    max_update: float = setting(
        10.0,
        "times the usual length of the round's updates beyond which a longer one is left out, unless it is up to twice "
        "as long as was usual in an earlier round; 0: never",
        ge=0,
    )
    max_pixel: float = setting(
        100.0,
        "times the normalised range of real images beyond which a site's synthetic ones are left out; 0: never",
        ge=0,
    )
    secret: Literal["off", "on"] = setting(
        "off",
        "on: of what sites add up the server learns the total of many, and no site's own part (docs/secret-sum.md)",
        later=True,
    )
    secret_colluders: int = setting(
        -1,
        "secret=on: sites on the server's side that are withstood; -1: a third of those asked",
        symbol="c",
        ge=-1,
        later=True,
    )
    secret_clip: float = setting(
        10.0,
        "secret=on: length that every site's update is cut to before it is rounded and added",
        symbol="C",
        ge=1e-6,
        le=1e6,
        later=True,
    )
    round_deadline: float = _operational(3600.0, "seconds a round's replies are waited for", gt=0)
    newcomers: Literal["known", "any"] = _operational(
        "known",
        "sites of their own data that join when as many as federation.sites have been there: those alone, or any",
    )
    join_deadline: float = _operational(
        300.0, "seconds the sites are waited for at the start", gt=0
    )

    @property
    def asked(self) -> int:
        """How many sites take part in a round."""
        return max(1, round(self.participation * self.sites))

    @property
    def needed_by_krum(self) -> int:
        """How many replies Krum needs in a round: 2 f + 3."""
        return 2 * self.byzantine + 3

    @property
    def combines(self) -> bool:
        """Whether something else than a mean is taken of the replies."""
        return self.robust not in ("clip", "none")


MEASURES = {"accuracy": "accuracy", "f1": "F1", "balanced": "balanced accuracy", "auc": "AUC"}
"""The measures of a round, in words."""


class EvaluationSettings(Section):
    """Where the global model is evaluated after a round, and by which measure."""

    on: Literal["server", "sites", "both", "none"] = setting(
        "server", "the server's test set, the sites' held-out shares, both or neither"
    )
    batch: int = setting(
        500, "images a forward pass; costs memory, changes no more than the last bits", ge=1
    )
    every: int = setting(
        1, "rounds from one evaluation to the next; the last round always has one", ge=1
    )
    measure: Literal["accuracy", "f1", "balanced", "auc"] = setting(
        "accuracy",
        "what best, --tune and tables go by; by another than accuracy, sites that evaluate report counts of held-out "
        "examples by true and predicted class",
    )
    patience: int = setting(
        0,
        "evaluations without a better validation figure after which the run ends, with its best round as the result; "
        "0: all rounds are run",
        ge=0,
        later=True,
    )


class ComputeSettings(Section):
    """The resources of its machine that a process may use."""

    device: str = setting(
        "auto",
        "where tensors live; auto: a GPU where there is one",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        allowed="auto, cpu, cuda or cuda:N",
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        "arithmetic of training and evaluation; bfloat16 runs under autocast, and is the slower one on a CPU without "
        "AMX (docs/speed.md)",
    )
    client_cores: int = setting(1, "threads of a client", ge=1, amount="cores")
    server_cores: int = setting(1, "threads of the server", ge=1)
    batched: str = setting(
        "off",
        "how many simulated sites of one process train together, as one stacked model: off, a number, or auto, which "
        "is one by one unless all layers are linear and small or a GPU does the work; last digits differ",
        pattern=r"^(off|auto|[1-9][0-9]{0,3})$",
        allowed="off, auto or a number from 1 to 9999",
        later=True,
    )
    client_gpus: float = _operational(0.0, "share of a GPU that a simulated client takes", ge=0)
    workers: int = _operational(
        0,
        "processes that simulate clients side by side; 0: cores // client_cores, for `nectar run` where they pay",
        ge=0,
    )


class WireSettings(Section):
    """How payloads are encoded on their way."""

    images: str = setting(
        "float32",
        "synthetic images; uint8: a byte a value between each channel's extremes; jpeg:QUALITY: one JPEG picture a "
        "site, which cuts what is darker than black or brighter than white, and numbers are equal on one version of "
        "Pillow",
        pattern=f"^(float32|float16|uint8|{PATTERN})$",
        allowed="float32, float16, uint8, or jpeg:QUALITY with QUALITY from 1 to 95",
    )
    latents: Literal["float32", "float16"] = setting("float32", "noisy means of a latent space")
    weights: Literal["float32", "float16", "int8"] = setting(
        "float32",
        "a model's weights; int8: up, the update of each parameter in a byte, with a scale a tensor, and in float32 "
        "all that is not a parameter; down, float32",
    )
    error_feedback: Switch = setting(
        False,
        "weights=int8: a site remembers what its updates fell short by, and sends it with the next",
    )

    @property
    def pictures(self) -> bool:
        """Whether images are sent in a codec of pictures."""
        return is_picture(self.images)

    @property
    def pixels(self) -> str:
        """The encoding of images of a byte a value: unchanged, or as pictures."""
        return self.images if self.pictures else BYTES

    @property
    def updates(self) -> bool:
        """Whether sites send models as coded updates."""
        return self.weights == "int8"

    @property
    def whole_weights(self) -> str:
        """The encoding of weights that are not updates."""
        return "float32" if self.updates else self.weights


class PrivacySettings(Section):
    """Differential privacy of single examples, in the methods that offer it, and what it rests on."""

    noise_multiplier: Noise = of_noise(
        "standard deviation of the noise in each private step, as a multiple of clip; 0: no differential privacy",
        symbol="sigma",
    )
    epsilon: float = setting(
        0.0,
        "in place of noise_multiplier: what all the run's rounds may cost an example of a site, by which the noise is "
        "chosen as the run begins, from examples; a longer run is refused then",
        ge=0,
        lt=1000,
        later=True,
    )
    clip: float = of_clip("longest contribution of one example to a private step")
    counts: Literal["one", "public"] = setting(
        "one",
        "a private run: what a site says of its number of examples; one: nothing, each counts as one with a single "
        "example, and its steps follow examples; public: the number, which no epsilon covers",
    )
    examples: int = setting(
        0,
        "a private run with counts=one: how many examples every site is taken to have, which gives the share that a "
        "step draws and the number of steps",
        ge=0,
    )

    noise: Literal["auto", "system", "seeded"] = setting(
        "auto",
        "where noise that privacy rests on comes from; auto: the system's entropy at a site with its own data, the "
        "run's seed at one that holds a partition of a known data set, which makes it no guarantee",
    )
    delta: float = setting(1e-5, "the delta at which an epsilon is stated", gt=0, lt=1)

    @property
    def active(self) -> bool:
        """Whether the run asks for differential privacy."""
        return self.noise_multiplier > 0


class TrackSettings(Section):
    """A tracker that also receives the run's figures and settings: an extra of the installation."""

    by: Literal["none", "tensorboard", "mlflow"] = _operational(
        "none",
        "the tracker, also typed as track=; tensorboard: event files in the record; mlflow: the server that "
        "MLFLOW_TRACKING_URI names, which gets report and weights too, else a store in the output directory",
    )
    images: Switch = _operational(
        False,
        "show the tracker the images too; for public data sets divided among simulated sites alone",
    )
    group: str = _name("MLflow's experiment; empty: nectar, and in a comparison its folder's name")
    name: str = _name(
        "what the tracker calls the run; empty: its record's id, and in a comparison row and seed"
    )


class ImageTrainingSettings(Section):
    """The server's training on the images it received, for every method that learns from such (feddm, real)."""

    steps: int = setting(0, "steps a round, however many images there are; 0: by epochs", ge=0)
    epochs: int = setting(
        500,
        "passes a round over the images it trains on; steps takes their place, and 0 of both trains nothing",
        source="FedDM",
        ge=0,
    )
    batch: int = setting(256, "images a step", source="FedDM", ge=1)
    lr: float = setting(0.01, "learning rate of SGD", symbol="eta_s", source="FedDM", gt=0)
    schedule: Literal["constant", "steps", "cosine"] = setting(
        "constant",
        "how lr falls within a round; steps: to 0.3 of it after 6 tenths of the steps, to 0.09 after 8; cosine: along "
        "half a cosine to nothing",
    )
    momentum: float = setting(
        0.9, "momentum of SGD", source="third-party releases of FedDM", ge=0, lt=1
    )
    weight_decay: float = setting(0.0, "weight decay of SGD", ge=0)
    augment: Literal["none", "flip_crop", "dsa"] = setting(
        "none",
        "what a step does to its images; flip_crop: a crop of each within 4 reflected pixels, half flipped; dsa: one "
        "of the six transforms of differentiable siamese augmentation, the same for all images of a step",
    )
    average: float = setting(
        0.0,
        "share of the steps, the last ones, whose weights are averaged; running statistics are the last step's; 0: the "
        "last step's weights",
        ge=0,
        le=1,
    )
    ball: float = setting(
        5.0,
        "radius of the ball around the round's weights into which each step is projected; 0: no ball",
        symbol="rho",
        source="FedDM, whose matching draws from a ball of the same radius (feddm.rho)",
        ge=0,
    )

    def steps_on(self, images: int) -> int:
        """Return how many steps a round takes on so many images."""
        return self.steps or self.epochs * -(-images // self.batch)

    @model_validator(mode="before")
    @classmethod
    def _steps_without_passes(cls, given: Any) -> Any:
        """Drop epochs if steps are given, so that a resolved configuration states one length."""
        if isinstance(given, Mapping) and given.get("steps") and "epochs" not in given:
            return {**given, "epochs": 0}
        return given

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps and self.epochs:
            raise ValueError(
                f"steps={self.steps} and epochs={self.epochs} each set how long the server trains: give one of them"
            )
        return self


class DistilSettings(Section):
    """Public images without labels, and how several models' logits on them become one answer (feddf, fedmd)."""

    images: str = setting(
        "validation",
        "validation: the server's own, whose labels teach nothing; noise: drawn by the run's seed; or another set's",
        allowed="validation, noise, the name of a data set, or an absolute path to an export's synthetic.npz",
    )
    count: int = setting(500, "images at the most, drawn by the run's seed", ge=1, amount="images")
    aggregation: Literal["auto", "mean", "entropy"] = setting(
        "auto",
        "the answer of all; mean: the softmax of the mean logits, the papers' of FedDF and FedMD; entropy: DS-FL's "
        "sharpened mean softmax, in which no site's logits count more for being long; auto: entropy, and under "
        "privacy.noise_multiplier mean",
    )
    temperature: float = setting(
        0.1, "entropy: what mean probabilities are divided by before another softmax", gt=0
    )
    keep: Literal["none", "sites"] = setting(
        "none", "sites: fedmd's record has each site's last logits, which `nectar audit` examines"
    )


class ModelSettings(Section):
    """The classifier that is learned."""

    name: str = setting(
        "convnet",
        f"the architecture; {names('text')} for text, {names('table')} for tables, {names('series')} for series, "
        f"{names('images')} for images",
        allowed=f"one of {', '.join(MODELS)}, or yours as package.module:callable",
    )
    depth: int = setting(
        3,
        "convnet, conv1d: blocks of convolution, norm, ReLU and pooling; lstm, vit: "
        "layers; encoder, vae: convolutions of each of two blocks",
        ge=1,
        le=8,
    )
    width: int = setting(
        128,
        "convnet, conv1d: channels of every convolution; mlp, lstm: hidden units; vit: size of a token; encoder, vae: "
        "channels of the first block",
        ge=1,
        le=4096,
    )
    norm: Literal["instance", "group", "batch", "none"] = setting(
        "instance", "convnet, resnet18, resnet34: the normalisation in every block"
    )
    embedding: int = setting(
        0,
        "lstm: size of a token's vector; encoder, vae: of the latent code; 0: as width",
        ge=0,
        le=4096,
    )
    projection: int = setting(
        0,
        "size of a two-layer projection head between embedding and classifier, MOON's 256; 0: none",
        ge=0,
        le=4096,
    )
    tied: Switch = setting(
        True, "lstm: the output layer uses the embedding's own matrix; needs embedding = width"
    )
    start: str = _start(
        "weights to start from, which the server alone reads: a file there, or torchvision's by name; empty: drawn by "
        "the run's seed"
    )
    sha256: str = _sha256("SHA-256 that the file of start must have; empty: any")
    train: Literal["all", "head"] = setting(
        "all",
        "what the sites train: the complete model, or its last layer alone, on what the others make in evaluation",
    )
    statistics: Literal["averaged", "local"] = setting(
        "averaged",
        "batch norm's running means and variances: averaged as weights are, or each site's own, which never leave it",
    )
    personal: str = setting(
        "none",
        "the part that is each site's own and never leaves it: none, head (the last layer), norm (normalising layers), "
        "or names of layers with commas between them",
        later=True,
    )

    @property
    def stays_in_part(self) -> bool:
        """Whether something of the model stays at the sites."""
        return self.statistics == "local" or self.personal != "none"

    @property
    def what_stays(self) -> str:
        """The settings by which it does, as they are typed."""
        own = {"personal": self.personal != "none", "statistics": self.statistics == "local"}
        return ", ".join(f"model.{key}={getattr(self, key)}" for key, stays in own.items() if stays)

    def architecture(self) -> dict[str, Any]:
        """Return the settings of the architecture: all except those of the weights."""
        return self.model_dump(exclude={"start", "sha256", "train", "statistics", "personal"})


class FeaturesSettings(Section):
    """A frozen public network: every machine puts its images through it once, and methods learn from what comes out."""

    name: str = setting(
        "",
        f"the network's architecture: {names('images')}; empty: none, methods learn from the images",
        allowed="a model's name, or package.module:callable, such as torchvision.models:mobilenet_v3_small",
    )
    start: str = _start(
        "its weights, which every site and the server read on their own machine: a file there, or torchvision's by "
        "name, which are fetched into data-dir/weights where they are missing"
    )
    sha256: str = _sha256(
        "SHA-256 that the file of start must have everywhere; a file by path needs it"
    )
    depth: int = setting(3, "as model.depth", ge=1, le=8)
    width: int = setting(128, "as model.width", ge=1, le=4096)
    norm: Literal["instance", "group", "batch", "none"] = setting("instance", "as model.norm")


@dataclass(frozen=True, kw_only=True)
class SharedSections:
    """Every run-wide section, by its name in files and on the command line: a configuration has one of each."""

    data: DataSettings
    images: ImagesSettings
    features: FeaturesSettings
    partition: PartitionSettings
    model: ModelSettings
    federation: FederationSettings
    image_training: ImageTrainingSettings
    distil: DistilSettings
    evaluation: EvaluationSettings
    compute: ComputeSettings
    wire: WireSettings
    privacy: PrivacySettings
    track: TrackSettings


SECTIONS: dict[str, type[Section]] = get_type_hints(SharedSections)
"""Their classes."""


# ---- datasets ------------------------------------------------------------------------------------
# The forms of ``dataset`` besides a name of ``conf/dataset``: user-defined data, by how they are reached.
#
# And which sets are public: the pictures of any other one are taken to be personal.
#
# Nothing is imported or read: a configuration is resolved without the data.

FOLDERS = "images"
"""A folder of the user's images, whose file in ``conf/dataset`` has the defaults of all user-defined data."""

FILE, TORCHVISION, HUB, FUNCTION = "file", "torchvision", "hf", "function"

TABLE_ENDING = ".csv"
"""What the name of a file ends with that holds a table as text."""


@dataclass(frozen=True)
class Form:
    """One way to name user-defined data: how it is written, which texts it covers, and what it is."""

    written: str
    pattern: re.Pattern[str]
    meaning: str


_WORD = r"[A-Za-z_]\w*"

# The first that matches counts, so that torchvision's and the hub's names are no modules of the user's.
FORMS: dict[str, Form] = {
    FILE: Form(
        "data.file=x.npz",
        re.compile("file"),
        "arrays in a NumPy file, or a table in a .csv file (dataset=file, understood)",
    ),
    TORCHVISION: Form(
        "torchvision:NAME",
        re.compile(rf"torchvision:{_WORD}(:\w+)?"),
        "any of torchvision's image sets, such as torchvision:SVHN; torchvision:EMNIST:letters",
    ),
    HUB: Form(
        "hf:NAME",
        re.compile(r"hf:[\w.-]+(/[\w.-]+)?"),
        "an image set of the Hugging Face Hub, through flwr-datasets",
    ),
    FUNCTION: Form(
        "package.module:callable",
        re.compile(rf"(?!(torchvision|hf):){_WORD}(\.{_WORD})*:{_WORD}"),
        "your function that returns the images and labels",
    ),
}
"""Every form by what kind of set it names."""

PUBLIC = (
    "digits", "mnist", "fashionmnist", "cifar10", "cifar100", "dsprites", "femnist", "reddit", "reddit2k",
)  # fmt: skip
"""The sets known by name and published for anybody: what is sent of them reveals no person."""


def is_user_data(dataset: str) -> bool:
    """Return whether a set's pictures are taken to be personal: a folder, a file, a function, any other name."""
    return dataset not in PUBLIC


def kind_of(dataset: str) -> str | None:
    """Return the kind of user-defined data, a key of ``FORMS``; None for a name, known or not."""
    return next((kind for kind, form in FORMS.items() if form.pattern.fullmatch(dataset)), None)


def module_of(dataset: str) -> str:
    """Return the module that reading the data set imports, empty if it is not the user's."""
    return dataset.partition(":")[0] if kind_of(dataset) == FUNCTION else ""


def forms_in_words() -> str:
    """Return the forms as they are typed, for a sentence."""
    return ", ".join(form.written for form in FORMS.values())


def as_file_name(dataset: str) -> str:
    """Return the data set as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", dataset)
