"""Settings that are each allowed but cannot hold together, networks' included."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from common.errors import ConfigError
from common.methods import METHODS, require_taken, resolve, section
from common.models.registry import KINDS, MODELS, misfit, names, takes
from common.settings.base import Disclosure, Settings
from common.settings.columns import MOST_COLUMNS, agreed_columns, edges_of, inputs_of
from common.settings.images import ImagesSettings
from common.settings.section import Section
from common.settings.sections import (
    FILE,
    FUNCTION,
    TABLE_ENDING,
    ComputeSettings,
    DataSettings,
    EvaluationSettings,
    FeaturesSettings,
    FederationSettings,
    ModelSettings,
    PartitionSettings,
    PrivacySettings,
    TrackSettings,
    WireSettings,
    is_user_data,
    kind_of,
)
from common.wire import image_codecs

FILE_KEY, SITES_KEY = "data.file", "images.sites"

COLUMNS_KEY, TABLES_KEY = "data.columns", "data.sites"

#: the settings of ``images`` that say how files of a folder are read
_OF_FOLDERS = ("folder", "sites", "size", "channels", "bits", "page", "white", "black", "group")


def check_federation(federation: FederationSettings) -> None:
    """Refuse a quorum above the sites that there are, or that a round asks, with a ConfigError."""
    if federation.min_replies > federation.sites:
        raise ConfigError(
            f"federation.min_replies={federation.min_replies} can never be met by "
            f"federation.sites={federation.sites}: lower the one or raise the other."
        )
    asked = federation.asked
    if federation.min_replies > asked:
        raise ConfigError(
            f"federation.min_replies={federation.min_replies} can never be met where "
            f"federation.participation={federation.participation:g} asks {asked} of "
            f"{federation.sites} sites a round: lower the one or raise the other."
        )


def check_batched(compute: ComputeSettings) -> None:
    """Refuse several processes for sites that are to be trained together in one, with a ConfigError."""
    if compute.batched != "off" and compute.workers > 1:
        raise ConfigError(
            f"compute.batched={compute.batched} trains sites together in one process, and "
            f"compute.workers={compute.workers} divides them among several: leave one of the two out."
        )


def check_robust(federation: FederationSettings, method: str, settings: Settings) -> None:
    """Refuse a robust average where none is taken, and Krum of too few replies (ConfigError)."""
    if not federation.combines:
        return
    asked = f"federation.robust={federation.robust}"
    if not settings.uses() and not resolve(method).averages:  # else those inside it are checked
        named = ", ".join(name for name, known in METHODS.items() if known.averages)
        raise ConfigError(
            f"{asked} takes the place of the mean of the sites' whole models, where a server learns from nothing else, "
            f"and method={method} is not of that kind: choose one of {named}, or set federation.robust=clip."
        )
    f, replies, needed = federation.byzantine, federation.asked, federation.needed_by_krum
    if federation.robust == "krum" and replies < needed:
        raise ConfigError(
            f"{asked} needs {needed} replies a round with federation.byzantine={f} (2 f + 3), and {replies} sites are "
            "asked: lower federation.byzantine, raise federation.sites or federation.participation, or choose "
            "federation.robust=median."
        )
    if federation.robust == "krum" and federation.kept > replies - f:
        raise ConfigError(
            f"federation.kept={federation.kept} of {replies} replies would keep one of federation.byzantine={f} "
            f"hostile ones for certain: set it to {replies - f} or less."
        )


def check_evaluation(
    evaluation: EvaluationSettings, data: DataSettings, settings: Settings
) -> None:
    """Refuse an evaluation on sites that hold nothing out for it, or two parts, or patience without validation."""
    judged = data.validated_at_sites or evaluation.on in ("server", "both")
    if evaluation.patience and (not judged or not data.validation or settings.trains_on_validation):
        raise ConfigError(
            f"evaluation.patience={evaluation.patience} waits for a better figure on a validation split, which is not "
            "judged: set data.validation above 0, with evaluation.on=server or data.validation_at=sites, or leave it "
            "out."
        )
    on_sites = evaluation.on in ("sites", "both")
    if data.validated_at_sites and (on_sites or data.site_holdout):
        raise ConfigError(
            "data.validation_at=sites has each site hold out one part, the validation split, and judge no other: leave "
            "data.site_holdout out, with evaluation.on=server or none, or set data.validation_at=server."
        )
    if on_sites and data.site_holdout == 0:
        raise ConfigError(
            f"evaluation.on={evaluation.on} needs images the sites hold out for it: "
            "set data.site_holdout above 0, such as 0.1."
        )


def check_private(private: bool, asked: str, method: str) -> None:
    """Refuse what has sites judge in a run whose sites let nothing out but through a mechanism: ConfigError."""
    if private and asked:
        cure = "data.validation=0" if asked.startswith("data.") else "evaluation.on=server or none"
        raise ConfigError(
            f"{asked} has the sites tell accuracies and losses of their own examples, which the privacy of this run "
            f"(method={method}) does not cover: set {cure}."
        )


def check_wire(wire: WireSettings, method: str, sent: Disclosure | None) -> None:
    """Refuse pictures of what is none, and feedback of errors that nothing makes (ConfigError)."""
    if wire.pictures and sent is not None and sent.numbers:
        raise ConfigError(
            f"wire.images={wire.images} cannot hold under method={method}, whose sites send {sent.payload}: these are "
            "no pictures, and would not be what was learned; set wire.images to "
            f"{image_codecs.names(image_codecs.numbers)}."
        )
    if wire.error_feedback and not wire.updates:
        raise ConfigError(
            f"wire.error_feedback=on is of updates that are coded, and wire.weights={wire.weights} codes none: set "
            "wire.weights=int8, or leave it out."
        )


def check_statistics(
    model: ModelSettings, evaluation: EvaluationSettings, method: str, sent: Disclosure | None
) -> None:
    """Refuse a part of the model that stays at the sites where the server needs a whole one (ConfigError)."""
    if not model.stays_in_part:
        return
    told = model.what_stays
    if evaluation.on in ("server", "both"):
        raise ConfigError(
            f"{told} leaves the server no model to evaluate, and evaluation.on={evaluation.on} asks it "
            "to: set evaluation.on=sites with data.site_holdout above 0, or evaluation.on=none."
        )
    # an update by pairs of images, or of factors, is of the whole model
    trained = sent is not None and sent.update and method not in ("fedsynth", "lowrank")
    # FedDyn's and FedPVR's corrections are of all parameters, or of layers by their names
    if not trained or (model.personal != "none" and method in ("feddyn", "fedpvr")):
        raise ConfigError(
            f"{told} is for methods whose sites train the model and send its weights, and "
            f"method={method} does not: choose fedavg or one of its kind, or leave it out."
        )


def check_images(images: ImagesSettings, kind: str = "images") -> None:
    """Refuse a folder of images that could never be read; without a class list there is none (ConfigError)."""
    if not images.classes:
        return
    _check_names(images.names)
    if kind != "images":
        return  # whose constants are one a column, which reading compares
    for name in ("mean", "std"):
        try:
            values = images.constants(name)
        except ValueError:
            values = ()
        if not values or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            raise ConfigError(
                f"images.{name}={getattr(images, name)} must be one number{above}, or {images.channels} with "
                f"commas between them for images.channels={images.channels}."
            )


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) < 2:
        raise ConfigError(
            f"images.classes={names[0]} is one class: name two or more, with commas between them."
        )
    for name in names:
        if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
            raise ConfigError(
                f"images.classes holds {name!r}, which cannot be a class: names of folders, with commas between "
                "them, none empty, none that begins with a dot."
            )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ConfigError(f"images.classes names {twice[0]} more than once: name each class once.")


def check_own_data(dataset: str, data: DataSettings, images: ImagesSettings) -> None:
    """Refuse settings of a set of one's own that do not fit together (ConfigError)."""
    kind = kind_of(dataset)
    if data.file and kind != FILE:
        raise ConfigError(
            f"{FILE_KEY}={data.file} is a data set of its own and dataset={dataset} another: leave one out."
        )
    if kind == FILE and (data.file or not (data.columns or data.sites)):
        _check_file(data.file)
    if data.size and (kind is None or kind == FILE or data.kind != "images"):
        raise ConfigError(
            f"data.size={data.size} is for sets of pictures (torchvision:, hf:, package.module:callable), not for "
            f"dataset={dataset}{'' if kind else ', whose images have their size: a folder has images.size'}."
        )
    for name in _OF_FOLDERS if kind else ():
        if getattr(images, name) != type(images).model_fields[name].default:
            hint = "; data.size brings pictures to a size" if name == "size" else ""
            raise ConfigError(
                f"images.{name}={getattr(images, name)} is for folders of images, which dataset={dataset} is "
                f"not: leave it out{hint}."
            )


def _check_file(file: str) -> None:
    if not file:
        raise ConfigError(f"dataset=file names no file: set {FILE_KEY}=x.npz.")
    if not file.endswith((".npz", TABLE_ENDING)):
        raise ConfigError(
            f"{FILE_KEY}={file} must be a .npz file of NumPy's (numpy.savez), or a table as a .csv file."
        )
    if not Path(file).is_absolute():
        raise ConfigError(
            f"{FILE_KEY}={file} must be an absolute path. Did you mean {Path.cwd() / file}?"
        )


def check_arrays(dataset: str, data: DataSettings, images: ImagesSettings) -> None:
    """Refuse settings of a table or of series that do not fit together, and such settings of images: ConfigError."""
    table = data.file.endswith(TABLE_ENDING) or bool(data.columns and not data.file)
    asked = f"data.kind={data.kind}"
    if data.kind != "images" and kind_of(dataset) not in (FILE, FUNCTION):
        raise ConfigError(
            f"{asked} is of arrays in a file or of a function of your own, and dataset={dataset} holds pictures or "
            "text: leave it out."
        )
    _check_columns(dataset, data, images)
    if table and data.kind != "table":
        raise ConfigError(f"{asked} cannot hold of {data.file}, a table: leave it out.")
    if table and not data.label:
        named = f"{FILE_KEY}={data.file}" if data.file else COLUMNS_KEY
        raise ConfigError(
            f"{named} needs data.label: the name of the column that has each row's class."
        )
    for key, column, way in (
        ("label", data.label, ""),
        ("group", data.group, "; arrays bring train_groups, and pictures have images.group"),
        ("owner", data.owner, ""),
    ):
        if column and not table:
            raise ConfigError(
                f"data.{key}={column} names a column of a .csv file, but {FILE_KEY} is not one: leave it out{way}."
            )
    if data.header == "none" and not table:
        raise ConfigError(
            f"data.header=none is of a .csv file, but {FILE_KEY} is not one: leave it out."
        )
    if data.axes != "auto" and data.kind != "series":
        raise ConfigError(
            f"data.axes={data.axes} is of data.kind=series: add that, or leave it out."
        )
    if data.kind == "images":
        for name in ("scale", "low", "high"):
            if (value := getattr(data, name)) != DataSettings.model_fields[name].default:
                raise ConfigError(
                    f"data.{name}={value} is for tables and series; of images images.mean and images.std say how they "
                    "are normalised: leave it out, or add data.kind=table or data.kind=series."
                )
        return
    if bool(data.low) != bool(data.high):
        given, other = ("low", "high") if data.low else ("high", "low")
        raise ConfigError(f"data.{given} is half of a pair: state data.{other}, too.")
    for name in ("mean", "std"):
        stated = getattr(images, name)
        if data.scale != "standard" and stated != ImagesSettings.model_fields[name].default:
            raise ConfigError(
                f"images.{name}={stated} has no part in data.scale={data.scale}: set data.scale=standard, or leave it "
                "out."
            )


def _check_columns(dataset: str, data: DataSettings, images: ImagesSettings) -> None:
    """Refuse columns that a run names where it reads no table, or that do not say all that sites must agree on."""
    if not data.columns:
        if data.sites:
            raise ConfigError(
                f"{TABLES_KEY} needs {COLUMNS_KEY} and images.classes: what the sites' tables have in common."
            )
        return
    if kind_of(dataset) != FILE or (data.file and not data.file.endswith(TABLE_ENDING)):
        raise ConfigError(
            f"{COLUMNS_KEY} is of tables, .csv files, and dataset={data.file or dataset} is another set: leave it out."
        )
    try:
        columns = agreed_columns(data.columns)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    if (number := len(inputs_of(columns))) > MOST_COLUMNS:
        raise ConfigError(
            f"{COLUMNS_KEY} makes {number:,} columns, of which {MOST_COLUMNS:,} are learned from at the most."
        )
    apart = next((c.name for c in columns if c.name in (data.label, data.group, data.owner)), None)
    if apart is not None:
        raise ConfigError(
            f"{COLUMNS_KEY} names {apart!r}, which is data.label, data.group or data.owner: leave it out there."
        )
    if not images.classes:
        raise ConfigError(
            f"{COLUMNS_KEY} needs images.classes: what data.label says of a row, the same at every site, such as "
            "images.classes=benign,malignant."
        )


def check_bins(data: DataSettings, images: ImagesSettings, private: bool) -> None:
    """Refuse classes of a number's ranges that nobody could agree on, with a ConfigError."""
    if not data.bins and not data.edges:
        return
    asked = f"data.edges={data.edges}" if data.edges else f"data.bins={data.bins}"
    if not data.label or data.header == "none":
        raise ConfigError(f"{asked} is of a .csv file's data.label: name one, or leave it out.")
    if data.bins == 1 or (not data.edges and (private or data.columns)):
        why = "makes one class" if data.bins == 1 else "would be computed of rows"
        raise ConfigError(
            f"{asked} {why}: state data.edges, such as data.edges=10,20 for three classes, known to all."
        )
    try:
        classes = len(edges_of(data.edges)) + 1 if data.edges else data.bins
    except ValueError:
        raise ConfigError(f"{asked} must be rising numbers with commas between them.") from None
    for key, count in (("data.bins", data.bins), ("images.classes", len(images.names))):
        if count and count != classes:
            raise ConfigError(
                f"{asked} makes {classes} classes, and {key} says {count}: make them equal, or leave {key} out."
            )


def check_owner(data: DataSettings, partition: PartitionSettings) -> None:
    """Refuse owners of rows that decide nothing, or groups within them, with a ConfigError."""
    if not data.owner:
        return
    if partition.kind != "natural" or not data.file:
        raise ConfigError(
            f"data.owner={data.owner} says whose each row of {FILE_KEY} is, for partition.kind=natural: set both, or "
            "leave it out."
        )
    if data.group not in ("", data.owner):
        raise ConfigError(
            f"data.group={data.group} would divide the owners that data.owner={data.owner} names: name one column for "
            "both, which keeps owners whole, or leave one out."
        )


def check_taken(
    named: str,
    kind: str,
    models: Iterable[ModelSettings],
    wire: WireSettings,
    sections: Mapping[str, Section],
    methods: Iterable[str],
) -> None:
    """Refuse a table or series under a method, model, augmentation or codec of pictures: ConfigError."""
    for method in methods if kind != "images" else ():
        require_taken(method, kind, named)
    possible = ("images", "text") if kind == "images" else (kind,)
    for model in models:
        if model.name in MODELS and not any(takes(model.name, one) for one in possible):
            raise ConfigError(f"{misfit(model.name, kind)}.")
    if kind == "images":
        return
    codec = image_codecs.find(wire.images)
    if codec is None or not codec.rows:
        raise ConfigError(
            f"wire.images={wire.images} is a coding of pictures, and {named} is {KINDS[kind]}: set wire.images to "
            f"{image_codecs.names(lambda row: row.rows)}."
        )
    for name, settings in sections.items():
        for key, off in (("augment", "none"), ("dsa", ""), ("side", "full")):
            value = getattr(settings, key, off)
            if value != off:
                raise ConfigError(
                    f"{name}.{key}={value} changes pictures, and {named} is {KINDS[kind]}: leave it out, or set it to "
                    f"{off or 'nothing'}."
                )


def check_originals(
    method: str, disclosed: Disclosure | None, dataset: str, data: DataSettings
) -> None:
    """Refuse to send pictures that may be somebody's own as they are, unless that is asked for (ConfigError)."""
    if disclosed is None or not disclosed.unchanged:
        return
    if is_user_data(dataset) and not data.send_originals:
        raise ConfigError(
            f"method={method} with these settings sends real pictures as they are, and those of dataset={dataset} are "
            "taken for somebody's own: add data.send_originals=on if they may leave, or choose feddm with "
            "feddm.start=noise."
        )


def check_site_places(key: str, places: Sequence[Path], federation: FederationSettings) -> None:
    """Refuse folders or tables of simulated sites that are relative, named twice or not one a site: ConfigError."""
    what = "folder" if key == SITES_KEY else "file"
    for place in places:
        if not place.is_absolute():
            raise ConfigError(
                f"{key} names {str(place)!r}: give absolute paths with commas between them."
            )
        if places.count(place) > 1:
            raise ConfigError(f"{key} names {place} twice: each site has a {what} of its own.")
    if places and len(places) != federation.sites:
        raise ConfigError(
            f"{key} names {len(places)} {what}s, one a site, and federation.sites={federation.sites}: "
            "leave federation.sites out, or make them equal."
        )


def check_track(track: TrackSettings, dataset: str) -> None:
    """Refuse to show a tracker pictures of a set that is not public, or none a tracker, with a ConfigError."""
    if not track.images:
        return
    if track.by == "none":
        raise ConfigError(
            "track.images=on shows images to a tracker, and none is chosen: add track=tensorboard or track=mlflow, or "
            "leave it out."
        )
    if is_user_data(dataset):
        raise ConfigError(
            f"track.images=on would copy pictures of dataset={dataset}, which are taken for somebody's own, to a "
            "tracker: leave it out; the figures are tracked without it."
        )


def check_privacy(privacy: PrivacySettings, method: str, settings: Settings) -> None:
    """Refuse differential privacy where something would leave the sites past its noise (ConfigError)."""
    sent = settings.disclosure()
    if not privacy.active:
        if resolve(method).private and sent is not None and sent.differentially_private:
            raise ConfigError(
                f"{section(method)}.mechanism promises noise, and privacy.noise_multiplier is 0: set it above 0, such "
                "as 1."
            )
        return
    asked = f"privacy.noise_multiplier={privacy.noise_multiplier:g}"
    if why := settings.unprotected(privacy):
        why = why.replace("{section}", section(method))
        raise ConfigError(f"{asked} cannot hold under method={method}: {why}.")
    if not resolve(method).private:
        named = ", ".join(name for name, known in METHODS.items() if known.private)
        raise ConfigError(
            f"{asked} asks for differential privacy, which method={method} does not have: choose one of {named}, or "
            "leave it at 0."
        )
    if sent is not None and sent.class_counts and privacy.counts != "public":
        raise ConfigError(
            f"{asked} cannot hold under method={method}, whose sites tell their number of examples of every class: "
            "set privacy.counts=public where these are no secret, or choose another method."
        )


# ---- networks ------------------------------------------------------------------------------------
# Settings of networks and of the weights they begin with that cannot hold together.

START_KEY = "model.start"

#: methods whose sites train by the task's loss alone
_PLAIN = ("fedavg", "fedprox", "fednova", "feddyn", "lowrank", "masking", "topk", "local")

#: methods whose sites and server move nothing but what the local steps moved
_HEAD_ALONE = (*_PLAIN, "moon")


def check_class_weights(settings: Settings, method: str, private: bool) -> None:
    """Refuse weights of classes under noise, or where another loss than the task's is trained by: ConfigError."""
    chosen = getattr(settings, "class_weights", "none")
    if chosen == "none" or (not private and (method in _PLAIN or method not in METHODS)):
        return
    why = f"is of the loss that sites train by under {', '.join(_PLAIN)}: choose one of these"
    if private:
        why = "weighs an example by how many there are of its class, which no noise covers: leave it out"
    raise ConfigError(f"class_weights={chosen} under method={method} {why}, or set it to none.")


def check_head(model: ModelSettings, method: str) -> None:
    """Refuse to train the last layer alone where a method trains others; ConfigError naming methods that do not."""
    if model.train == "head" and method not in _HEAD_ALONE:
        raise ConfigError(
            f"model.train=head cannot hold under method={method}, which does not leave the other layers as they are: "
            f"choose one of {', '.join(_HEAD_ALONE)}, or set model.train=all."
        )


def check_model(model: ModelSettings) -> None:
    """Refuse weights to start from that are no file by absolute path, and none of torchvision's (ConfigError)."""
    start = model.start
    if start and not ((_is_file(start) and PurePath(start).is_absolute()) or _is_published(start)):
        raise ConfigError(
            f"{START_KEY}={start} must be torchvision:NAME, or an absolute path to a .safetensors, .pth or .pt file, "
            "as safetensors.torch.save_file or torch.save writes a state_dict."
        )
    if model.sha256 and not start:
        raise ConfigError(
            "model.sha256 names the contents of a file, but model.start is not set: set it, or leave model.sha256 out."
        )


def check_features(features: FeaturesSettings, dataset: str, data: DataSettings) -> None:
    """Refuse features of no network, of one that takes no images, or whose weights machines could not agree on."""
    name, start = features.name, features.start
    if not name:
        for key, value in features.model_dump().items():
            if value != FeaturesSettings.model_fields[key].default:
                raise ConfigError(
                    f"features.{key}={value} is of a network, and features.name is not set: set it, or leave it out."
                )
        return
    if name in MODELS and not takes(name, "images"):
        raise ConfigError(f"features.name={name} takes no images: choose one of {names('images')}.")
    if data.kind != "images":
        raise ConfigError(
            f"features.name={name} is for images, and {data.file or dataset} is {KINDS[data.kind]}: leave it out."
        )
    if not (_is_file(start) or _is_published(start)):
        raise ConfigError(
            f"features.start={start} must be torchvision:NAME, or a .safetensors, .pth or .pt file: an absolute path, "
            "or a name below data-dir/weights; every machine reads it."
        )
    if not features.sha256 and not _is_published(start):
        raise ConfigError(
            f"features.start={start} needs features.sha256, the file's SHA-256, so that every machine reads the same: "
            "sha256sum tells it."
        )


def _is_file(start: str) -> bool:
    return start.endswith((".safetensors", ".pth", ".pt"))


def _is_published(start: str) -> bool:
    return re.fullmatch(r"torchvision:\w+", start) is not None
