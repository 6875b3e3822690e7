"""Settings that are each allowed but cannot hold together: a rule yields a sentence for each such pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from common.config.secret import check_secret
from common.errors import ConfigError
from common.methods import METHODS, require_taken, resolve, section
from common.models.registry import KINDS, MODELS, misfit, names, takes
from common.settings.columns import MOST_COLUMNS, agreed_columns, inputs_of
from common.settings.images import ImagesSettings
from common.settings.sections import (
    FILE,
    FUNCTION,
    TABLE_ENDING,
    DataSettings,
    FeaturesSettings,
    is_user_data,
    kind_of,
)
from common.wire.image_codecs import ROWS

if TYPE_CHECKING:
    from common.config.resolved import Config

FILE_KEY, SITES_KEY = "data.file", "images.sites"

COLUMNS_KEY, TABLES_KEY = "data.columns", "data.sites"

#: the settings of ``images`` that say how files of a folder are read
_OF_FOLDERS = ("folder", "sites", "size", "channels", "bits", "page", "white", "black", "group")


def _federation(c: Config) -> Iterator[str]:
    """Refuse a quorum above the sites that there are, or that a round asks."""
    federation = c.federation
    if federation.min_replies > federation.sites:
        yield (
            f"federation.min_replies={federation.min_replies} can never be met by "
            f"federation.sites={federation.sites}: lower the one or raise the other."
        )
    asked = federation.asked
    if federation.min_replies > asked:
        yield (
            f"federation.min_replies={federation.min_replies} can never be met where "
            f"federation.participation={federation.participation:g} asks {asked} of "
            f"{federation.sites} sites a round: lower the one or raise the other."
        )


def _batched(c: Config) -> Iterator[str]:
    """Refuse several processes for sites that are to be trained together in one."""
    compute = c.compute
    if compute.batched != "off" and compute.workers > 1:
        yield (
            f"compute.batched={compute.batched} trains sites together in one process, and "
            f"compute.workers={compute.workers} divides them among several: leave one of the two out."
        )


def _robust(c: Config) -> Iterator[str]:
    """Refuse a robust average where none is taken, and Krum of too few replies."""
    federation, method, settings = c.federation, c.method, c.settings
    if not federation.combines:
        return
    asked = f"federation.robust={federation.robust}"
    if not settings.uses() and not resolve(method).averages:  # else those inside it are checked
        named = ", ".join(name for name, known in METHODS.items() if known.averages)
        yield (
            f"{asked} takes the place of the mean of the sites' whole models, where a server learns from nothing else, "
            f"and method={method} is not of that kind: choose one of {named}, or set federation.robust=clip."
        )
    f, replies, needed = federation.byzantine, federation.asked, federation.needed_by_krum
    if federation.robust == "krum" and replies < needed:
        yield (
            f"{asked} needs {needed} replies a round with federation.byzantine={f} (2 f + 3), and {replies} sites are "
            "asked: lower federation.byzantine, raise federation.sites or federation.participation, or choose "
            "federation.robust=median."
        )
    if federation.robust == "krum" and federation.kept > replies - f:
        yield (
            f"federation.kept={federation.kept} of {replies} replies would keep one of federation.byzantine={f} "
            f"hostile ones for certain: set it to {replies - f} or less."
        )


def _evaluation(c: Config) -> Iterator[str]:
    """Refuse an evaluation on sites that hold nothing out for it, or two parts, or patience without validation."""
    evaluation, data, settings = c.evaluation, c.data, c.settings
    judged = data.validated_at_sites or evaluation.on in ("server", "both")
    if evaluation.patience and (not judged or not data.validation or settings.trains_on_validation):
        yield (
            f"evaluation.patience={evaluation.patience} waits for a better figure on a validation split, which is not "
            "judged: set data.validation above 0, with evaluation.on=server or data.validation_at=sites, or leave it "
            "out."
        )
    on_sites = evaluation.on in ("sites", "both")
    if data.validated_at_sites and (on_sites or data.site_holdout):
        yield (
            "data.validation_at=sites has each site hold out one part, the validation split, and judge no other: leave "
            "data.site_holdout out, with evaluation.on=server or none, or set data.validation_at=server."
        )
    if on_sites and data.site_holdout == 0:
        yield (
            f"evaluation.on={evaluation.on} needs images the sites hold out for it: "
            "set data.site_holdout above 0, such as 0.1."
        )


def _private(c: Config) -> Iterator[str]:
    """Refuse what has sites judge in a run whose sites let nothing out but through a mechanism."""
    private, asked, method = c.private, c.judged_at_sites, c.method
    if private and asked:
        cure = "data.validation=0" if asked.startswith("data.") else "evaluation.on=server or none"
        yield (
            f"{asked} has the sites tell accuracies and losses of their own examples, which the privacy of this run "
            f"(method={method}) does not cover: set {cure}."
        )


def _wire(c: Config) -> Iterator[str]:
    """Refuse pictures of what is none, and feedback of errors that nothing makes."""
    wire, method, sent = c.wire, c.method, c.settings.disclosure()
    if wire.pictures and sent is not None and sent.numbers:
        yield (
            f"wire.images={wire.images} cannot hold under method={method}, whose sites send {sent.payload}: these are "
            "no pictures, and would not be what was learned; set wire.images to "
            "float32, float16 or uint8."
        )
    if wire.error_feedback and not wire.updates:
        yield (
            f"wire.error_feedback=on is of updates that are coded, and wire.weights={wire.weights} codes none: set "
            "wire.weights=int8, or leave it out."
        )


def _statistics(c: Config) -> Iterator[str]:
    """Refuse a part of the model that stays at the sites where the server needs a whole one."""
    model, evaluation, method = c.model, c.evaluation, c.method
    sent = c.settings.disclosure()
    if not model.stays_in_part:
        return
    told = model.what_stays
    if evaluation.on in ("server", "both"):
        yield (
            f"{told} leaves the server no model to evaluate, and evaluation.on={evaluation.on} asks it "
            "to: set evaluation.on=sites with data.site_holdout above 0, or evaluation.on=none."
        )
    # an update by pairs of images, or of factors, is of the whole model
    trained = sent is not None and sent.update and method not in ("fedsynth", "lowrank")
    # FedDyn's and FedPVR's corrections are of all parameters, or of layers by their names
    if not trained or (model.personal != "none" and method in ("feddyn", "fedpvr")):
        yield (
            f"{told} is for methods whose sites train the model and send its weights, and "
            f"method={method} does not: choose fedavg or one of its kind, or leave it out."
        )


def _images(c: Config) -> Iterator[str]:
    """Refuse a folder of images that could never be read; without a class list there is none."""
    images, kind = c.images, c.data.kind
    if not images.classes:
        return
    yield from _names(images.names)
    if kind != "images":
        return  # whose constants are one a column, which reading compares
    for name in ("mean", "std"):
        try:
            values = images.constants(name)
        except ValueError:
            values = ()
        if not values or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            yield (
                f"images.{name}={getattr(images, name)} must be one number{above}, or {images.channels} with "
                f"commas between them for images.channels={images.channels}."
            )


def _names(names: tuple[str, ...]) -> Iterator[str]:
    if len(names) < 2:
        yield (
            f"images.classes={names[0]} is one class: name two or more, with commas between them."
        )
    for name in names:
        if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
            yield (
                f"images.classes holds {name!r}, which cannot be a class: names of folders, with commas between "
                "them, none empty, none that begins with a dot."
            )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        yield (f"images.classes names {twice[0]} more than once: name each class once.")


def _own_data(c: Config) -> Iterator[str]:
    """Refuse settings of a set of one's own that do not fit together."""
    dataset, data, images = c.dataset, c.data, c.images
    kind = kind_of(dataset)
    if data.file and kind != FILE:
        yield (
            f"{FILE_KEY}={data.file} is a data set of its own and dataset={dataset} another: leave one out."
        )
    if kind == FILE and (data.file or not (data.columns or data.sites)):
        yield from _file(data.file)
    if data.size and (kind is None or kind == FILE or data.kind != "images"):
        yield (
            f"data.size={data.size} is for sets of pictures (torchvision:, hf:, package.module:callable), not for "
            f"dataset={dataset}{'' if kind else ', whose images have their size: a folder has images.size'}."
        )
    for name in _OF_FOLDERS if kind else ():
        if getattr(images, name) != type(images).model_fields[name].default:
            hint = "; data.size brings pictures to a size" if name == "size" else ""
            yield (
                f"images.{name}={getattr(images, name)} is for folders of images, which dataset={dataset} is "
                f"not: leave it out{hint}."
            )


def _file(file: str) -> Iterator[str]:
    if not file:
        yield (f"dataset=file names no file: set {FILE_KEY}=x.npz.")
    if not file.endswith((".npz", TABLE_ENDING)):
        yield (
            f"{FILE_KEY}={file} must be a .npz file of NumPy's (numpy.savez), or a table as a .csv file."
        )
    if not Path(file).is_absolute():
        yield (f"{FILE_KEY}={file} must be an absolute path. Did you mean {Path.cwd() / file}?")


def _arrays(c: Config) -> Iterator[str]:
    """Refuse settings of a table or of series that do not fit together, and such settings of images."""
    dataset, data, images = c.dataset, c.data, c.images
    table = data.file.endswith(TABLE_ENDING) or bool(data.columns and not data.file)
    asked = f"data.kind={data.kind}"
    if data.kind != "images" and kind_of(dataset) not in (FILE, FUNCTION):
        yield (
            f"{asked} is of arrays in a file or of a function of your own, and dataset={dataset} holds pictures or "
            "text: leave it out."
        )
    yield from _columns(c)
    if table and data.kind != "table":
        yield (f"{asked} cannot hold of {data.file}, a table: leave it out.")
    if table and not data.label:
        named = f"{FILE_KEY}={data.file}" if data.file else COLUMNS_KEY
        yield (f"{named} needs data.label: the name of the column that has each row's class.")
    for key, column, way in (
        ("label", data.label, ""),
        ("group", data.group, "; arrays bring train_groups, and pictures have images.group"),
        ("owner", data.owner, ""),
    ):
        if column and not table:
            yield (
                f"data.{key}={column} names a column of a .csv file, but {FILE_KEY} is not one: leave it out{way}."
            )
    if data.header == "none" and not table:
        yield (f"data.header=none is of a .csv file, but {FILE_KEY} is not one: leave it out.")
    if data.axes != "auto" and data.kind != "series":
        yield (f"data.axes={data.axes} is of data.kind=series: add that, or leave it out.")
    if data.kind == "images":
        for name in ("scale", "low", "high"):
            if (value := getattr(data, name)) != DataSettings.model_fields[name].default:
                yield (
                    f"data.{name}={value} is for tables and series; of images images.mean and images.std say how they "
                    "are normalised: leave it out, or add data.kind=table or data.kind=series."
                )
        return
    if bool(data.low) != bool(data.high):
        given, other = ("low", "high") if data.low else ("high", "low")
        yield (f"data.{given} is half of a pair: state data.{other}, too.")
    for name in ("mean", "std"):
        stated = getattr(images, name)
        if data.scale != "standard" and stated != ImagesSettings.model_fields[name].default:
            yield (
                f"images.{name}={stated} has no part in data.scale={data.scale}: set data.scale=standard, or leave it "
                "out."
            )


def _columns(c: Config) -> Iterator[str]:
    """Refuse columns that a run names where it reads no table, or that do not say all that sites must agree on."""
    dataset, data, images = c.dataset, c.data, c.images
    if not data.columns:
        if data.sites:
            yield (
                f"{TABLES_KEY} needs {COLUMNS_KEY} and images.classes: what the sites' tables have in common."
            )
        return
    if kind_of(dataset) != FILE or (data.file and not data.file.endswith(TABLE_ENDING)):
        yield (
            f"{COLUMNS_KEY} is of tables, .csv files, and dataset={data.file or dataset} is another set: leave it out."
        )
    try:
        columns = agreed_columns(data.columns)
    except ValueError as error:
        yield f"{error}."
        return
    if (number := len(inputs_of(columns))) > MOST_COLUMNS:
        yield (
            f"{COLUMNS_KEY} makes {number:,} columns, of which {MOST_COLUMNS:,} are learned from at the most."
        )
    apart = next((c.name for c in columns if c.name in (data.label, data.group, data.owner)), None)
    if apart is not None:
        yield (
            f"{COLUMNS_KEY} names {apart!r}, which is data.label, data.group or data.owner: leave it out there."
        )
    if not images.classes:
        yield (
            f"{COLUMNS_KEY} needs images.classes: what data.label says of a row, the same at every site, such as "
            "images.classes=benign,malignant."
        )


def _owner(c: Config) -> Iterator[str]:
    """Refuse owners of rows that decide nothing, or groups within them."""
    data, partition = c.data, c.partition
    if not data.owner:
        return
    if partition.kind != "natural" or not data.file:
        yield (
            f"data.owner={data.owner} says whose each row of {FILE_KEY} is, for partition.kind=natural: set both, or "
            "leave it out."
        )
    if data.group not in ("", data.owner):
        yield (
            f"data.group={data.group} would divide the owners that data.owner={data.owner} names: name one column for "
            "both, which keeps owners whole, or leave one out."
        )


def _taken(c: Config) -> Iterator[str]:
    """Refuse a table or series under a method, model, augmentation or codec of pictures."""
    named, kind, wire, sections = c.data.file or c.dataset, c.kind, c.wire, c.sections()
    methods = [c.method, *c.inner]
    models = [c.model, *(m for s in c.methods.values() for m in s.models(c.model).values())]
    for method in methods if kind != "images" else ():
        require_taken(method, kind, named)
    possible = ("images", "text") if kind == "images" else (kind,)
    for model in models:
        if model.name in MODELS and not any(takes(model.name, one) for one in possible):
            yield (f"{misfit(model.name, kind)}.")
    if kind == "images":
        return
    if wire.images not in ROWS:
        yield (
            f"wire.images={wire.images} is a coding of pictures, and {named} is {KINDS[kind]}: set wire.images to "
            f"float32 or float16."
        )
    for name, settings in sections.items():
        for key, off in (("augment", "none"), ("dsa", ""), ("side", "full")):
            value = getattr(settings, key, off)
            if value != off:
                yield (
                    f"{name}.{key}={value} changes pictures, and {named} is {KINDS[kind]}: leave it out, or set it to "
                    f"{off or 'nothing'}."
                )


def _originals(c: Config) -> Iterator[str]:
    """Refuse to send pictures that may be somebody's own as they are, unless that is asked for."""
    method, dataset, data = c.method, c.dataset, c.data
    disclosed = c.settings.disclosure()
    if disclosed is None or not disclosed.unchanged:
        return
    if is_user_data(dataset) and not data.send_originals:
        yield (
            f"method={method} with these settings sends real pictures as they are, and those of dataset={dataset} are "
            "taken for somebody's own: add data.send_originals=on if they may leave, or choose feddm with "
            "feddm.start=noise."
        )


def _site_places(c: Config) -> Iterator[str]:
    """Refuse folders or tables of simulated sites that are relative, named twice or not one a site."""
    for key, places in ((SITES_KEY, c.images.site_folders), (TABLES_KEY, c.data.site_files)):
        what = "folder" if key == SITES_KEY else "file"
        for place in places:
            if not place.is_absolute():
                yield f"{key} names {str(place)!r}: give absolute paths with commas between them."
            if places.count(place) > 1:
                yield f"{key} names {place} twice: each site has a {what} of its own."
        if places and len(places) != c.federation.sites:
            yield (
                f"{key} names {len(places)} {what}s, one a site, and federation.sites={c.federation.sites}: "
                "leave federation.sites out, or make them equal."
            )


def _track(c: Config) -> Iterator[str]:
    """Refuse to show a tracker pictures of a set that is not public, or none a tracker."""
    track, dataset = c.track, c.dataset
    if not track.images:
        return
    if track.by == "none":
        yield (
            "track.images=on shows images to a tracker, and none is chosen: add track=tensorboard or track=mlflow, or "
            "leave it out."
        )
    if is_user_data(dataset):
        yield (
            f"track.images=on would copy pictures of dataset={dataset}, which are taken for somebody's own, to a "
            "tracker: leave it out; the figures are tracked without it."
        )


def _privacy(c: Config) -> Iterator[str]:
    """Refuse differential privacy where something would leave the sites past its noise."""
    privacy, method, settings = c.privacy, c.method, c.settings
    if c.clips_updates:
        return
    sent = settings.disclosure()
    if not privacy.active:
        if resolve(method).private and sent is not None and sent.differentially_private:
            yield (
                f"{section(method)}.mechanism promises noise, and privacy.noise_multiplier is 0: set it above 0, such "
                "as 1."
            )
        return
    asked = f"privacy.noise_multiplier={privacy.noise_multiplier:g}"
    if why := settings.unprotected(privacy):
        why = why.replace("{section}", section(method))
        yield (f"{asked} cannot hold under method={method}: {why}.")
    if not resolve(method).private:
        named = ", ".join(name for name, known in METHODS.items() if known.private)
        yield (
            f"{asked} asks for differential privacy, which method={method} does not have: choose one of {named}, or "
            "leave it at 0."
        )
    if sent is not None and sent.class_counts and privacy.counts != "public":
        yield (
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


def _class_weights(c: Config) -> Iterator[str]:
    """Refuse weights of classes under noise, or where another loss than the task's is trained by."""
    settings, method, private = c.settings, c.method, c.private
    chosen = getattr(settings, "class_weights", "none")
    if chosen == "none" or (not private and (method in _PLAIN or method not in METHODS)):
        return
    why = f"is of the loss that sites train by under {', '.join(_PLAIN)}: choose one of these"
    if private:
        why = "weighs an example by how many there are of its class, which no noise covers: leave it out"
    yield (f"class_weights={chosen} under method={method} {why}, or set it to none.")


def _head(c: Config) -> Iterator[str]:
    """Refuse to train the last layer alone where a method trains others."""
    model, method = c.model, c.method
    if model.train == "head" and method not in _HEAD_ALONE:
        yield (
            f"model.train=head cannot hold under method={method}, which does not leave the other layers as they are: "
            f"choose one of {', '.join(_HEAD_ALONE)}, or set model.train=all."
        )


def _model(c: Config) -> Iterator[str]:
    """Refuse weights to start from that are no file by absolute path, and none of torchvision's."""
    model = c.model
    start = model.start
    if start and not ((_is_file(start) and PurePath(start).is_absolute()) or _is_published(start)):
        yield (
            f"{START_KEY}={start} must be torchvision:NAME, or an absolute path to a .safetensors, .pth or .pt file, "
            "as safetensors.torch.save_file or torch.save writes a state_dict."
        )
    if model.sha256 and not start:
        yield (
            "model.sha256 names the contents of a file, but model.start is not set: set it, or leave model.sha256 out."
        )


def _features(c: Config) -> Iterator[str]:
    """Refuse features of no network, of one that takes no images, or whose weights machines could not agree on."""
    features, dataset, data = c.features, c.dataset, c.data
    name, start = features.name, features.start
    if not name:
        for key, value in features.model_dump().items():
            if value != FeaturesSettings.model_fields[key].default:
                yield (
                    f"features.{key}={value} is of a network, and features.name is not set: set it, or leave it out."
                )
        return
    if name in MODELS and not takes(name, "images"):
        yield (f"features.name={name} takes no images: choose one of {names('images')}.")
    if data.kind != "images":
        yield (
            f"features.name={name} is for images, and {data.file or dataset} is {KINDS[data.kind]}: leave it out."
        )
    if not (_is_file(start) or _is_published(start)):
        yield (
            f"features.start={start} must be torchvision:NAME, or a .safetensors, .pth or .pt file: an absolute path, "
            "or a name below data-dir/weights; every machine reads it."
        )
    if not features.sha256 and not _is_published(start):
        yield (
            f"features.start={start} needs features.sha256, the file's SHA-256, so that every machine reads the same: "
            "sha256sum tells it."
        )


def _is_file(start: str) -> bool:
    return start.endswith((".safetensors", ".pth", ".pt"))


def _is_published(start: str) -> bool:
    return re.fullmatch(r"torchvision:\w+", start) is not None


def check(config: Config) -> None:
    """Refuse settings that cannot hold together, with the first of the rules' sentences: ConfigError."""
    # what a method's sites train is said by those inside it
    training = () if config.settings.uses() else (_head, _class_weights, _statistics)
    rules = (
        *(_images, _own_data, _arrays, _owner, _features, _taken, _originals, _site_places),
        *(_federation, _batched, _robust, _evaluation, _private, _model, _track, _wire),
        *(*training, _privacy),
    )
    for rule in rules:
        for sentence in rule(config):
            raise ConfigError(sentence)
    check_secret(config)
