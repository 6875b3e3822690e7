"""Settings that are each allowed but cannot hold together: a rule yields a sentence for each such pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from common.config.keys import COLUMNS_KEY, FILE_KEY, SITES_KEY, START_KEY, TABLES_KEY
from common.config.secret import secret_rules
from common.errors import ConfigError
from common.methods import METHODS, not_taken, resolve, those_that
from common.models.registry import KINDS, MODELS, misfit, names, takes
from common.settings.columns import MOST_COLUMNS, agreed_columns, inputs_of
from common.settings.images import ImagesSettings
from common.settings.section import notes
from common.settings.sections import (
    FILE,
    FUNCTION,
    TABLE_ENDING,
    FeaturesSettings,
    is_user_data,
    kind_of,
)
from common.wire.image_codecs import ROWS

if TYPE_CHECKING:
    from common.config.resolved import Config


def check(config: Config) -> None:
    """Refuse settings that cannot hold together, with all the rules' sentences, a line each: ConfigError."""
    if sentences := list(dict.fromkeys(rules(config))):
        raise ConfigError("\n".join(sentences))


def rules(c: Config) -> Iterator[str]:
    """Yield what cannot hold together; where the data are described wrongly, not what else they do not fit."""
    described = [
        sentence
        for rule in (_of_other_data, _classes, _own_data, _columns, _owner, _features)
        for sentence in rule(c)
    ]
    yield from described
    # what a method's sites train is said by those inside it
    training = () if c.settings.uses() else (_head, _class_weights, _statistics)
    for rule in (
        *(() if described else (_taken, _originals, _site_places)),
        *(_federation, _robust, _evaluation, _model, _track, _wire),
        *(*training, _privacy, secret_rules),
    ):
        yield from rule(c)


# ---- user-defined data ----------------------------------------------------------------------------


def _is_table(c: Config) -> bool:
    return c.data.file.endswith(TABLE_ENDING) or bool(c.data.columns and not c.data.file)


ONLY: dict[str, tuple[Callable[[Config], bool], str]] = {
    "csv": (lambda c: _is_table(c) or bool(c.data.sites), "tables (.csv files)"),
    "series": (lambda c: c.data.kind == "series", "series (data.kind=series)"),
    "numbers": (lambda c: c.data.kind != "images", "tables and series (data.kind)"),
    "folder": (lambda c: not kind_of(c.dataset), "folders of images"),
    "pictures": (
        lambda c: kind_of(c.dataset) not in (None, FILE) and c.data.kind == "images",
        "sets of pictures (torchvision:, hf:, package.module:callable)",
    ),
}
"""By the words of ``setting(only=...)``: whether a run's data are such, and what they are."""

_INSTEAD = {
    "data.group": "; arrays bring train_groups, and pictures have images.group",
    "data.scale": "; images.mean and images.std say how images are normalised",
    "data.size": "; a folder has images.size",
    "images.size": "; data.size brings pictures to a size",
}


def _of_other_data(c: Config) -> Iterator[str]:
    """Refuse settings that are of other data than the run's."""
    named = c.data.file or f"dataset={c.dataset}"
    for section, settings in (("data", c.data), ("images", c.images)):
        for name, field in type(settings).model_fields.items():
            value, only = getattr(settings, name), notes(field).get("only")
            if only is None or value == field.default:
                continue
            fits, what = ONLY[only]
            if not fits(c):
                kinds = only == "numbers" and bool(c.data.file)
                mend = "add data.kind=table or data.kind=series, or " if kinds else ""
                instead = _INSTEAD.get(f"{section}.{name}", "")
                yield (
                    f"{section}.{name}={value} is for {what}, which {named} is not: {mend}leave it out{instead}."
                )


def _classes(c: Config) -> Iterator[str]:
    """Refuse classes and constants of images by which these could never be read."""
    images, names = c.images, c.images.names
    if not images.classes:
        return
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
    for name in sorted(name for name, times in Counter(names).items() if times > 1):
        yield f"images.classes names {name} more than once: name each class once."
    for name in ("mean", "std") if c.data.kind == "images" else ():
        try:
            values = images.constants(name)  # type: ignore[arg-type]
        except ValueError:
            values = ()
        if not values or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            yield (
                f"images.{name}={getattr(images, name)} must be one number{above}, or {images.channels} with "
                f"commas between them for images.channels={images.channels}."
            )


def _own_data(c: Config) -> Iterator[str]:
    """Refuse a file that is unusable or given with another set, and settings that do not fit a table or series."""
    file, kind = c.data.file, kind_of(c.dataset)
    if file and kind != FILE:
        yield (f"{FILE_KEY}={file} is one data set and dataset={c.dataset} another: leave one out.")
    elif not file:
        if kind == FILE and not (c.data.columns or c.data.sites):
            yield f"dataset=file names no file: set {FILE_KEY}=x.npz."
    elif not file.endswith((".npz", TABLE_ENDING)):
        yield (
            f"{FILE_KEY}={file} must be a .npz file of NumPy's (numpy.savez), or a table as a .csv file."
        )
    elif not Path(file).is_absolute():
        yield f"{FILE_KEY}={file} must be an absolute path. Did you mean {Path.cwd() / file}?"
    data, asked = c.data, f"data.kind={c.data.kind}"
    if data.kind != "images" and kind_of(c.dataset) not in (FILE, FUNCTION):
        yield (
            f"{asked} is for arrays in a file or from your function, and dataset={c.dataset} holds pictures or "
            "text: leave it out."
        )
    if _is_table(c) and data.kind != "table":
        yield f"{asked} cannot hold of {data.file}, a table: leave it out."
    if _is_table(c) and not data.label:
        named = f"{FILE_KEY}={data.file}" if data.file else COLUMNS_KEY
        yield f"{named} needs data.label: the name of the column that has each row's class."
    if data.kind != "images" and bool(data.low) != bool(data.high):
        given, other = ("low", "high") if data.low else ("high", "low")
        yield f"data.{given} is half of a pair: state data.{other}, too."
    for name in ("mean", "std") if data.kind != "images" and data.scale != "standard" else ():
        if (stated := getattr(c.images, name)) != ImagesSettings.model_fields[name].default:
            yield (
                f"images.{name}={stated} has no part in data.scale={data.scale}: set data.scale=standard, or leave it "
                "out."
            )


def _columns(c: Config) -> Iterator[str]:
    """Refuse columns that a run names where it reads no table, or that do not say all that sites must agree on."""
    data = c.data
    if not data.columns:
        if data.sites:
            yield (
                f"{TABLES_KEY} needs {COLUMNS_KEY} and images.classes: what the sites' tables have in common."
            )
        return
    if kind_of(c.dataset) != FILE or (data.file and not data.file.endswith(TABLE_ENDING)):
        yield (
            f"{COLUMNS_KEY} is of tables, .csv files, and dataset={data.file or c.dataset} is another set: leave it "
            "out."
        )
    if not c.images.classes:
        yield (
            f"{COLUMNS_KEY} needs images.classes: what data.label says of a row, the same at every site, such as "
            "images.classes=benign,malignant."
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
    reserved = {data.label, data.group, data.owner}
    for name in (column.name for column in columns if column.name in reserved):
        yield (
            f"{COLUMNS_KEY} names {name!r}, which is data.label, data.group or data.owner: leave it out there."
        )


def _owner(c: Config) -> Iterator[str]:
    """Refuse owners of rows that decide nothing, or groups within them."""
    data = c.data
    if not data.owner or not _is_table(c):
        return
    if c.partition.kind != "natural" or not data.file:
        yield (
            f"data.owner={data.owner} says whose each row of {FILE_KEY} is, for partition.kind=natural: set both, or "
            "leave it out."
        )
    if data.group not in ("", data.owner):
        yield (
            f"data.group={data.group} would divide the owners that data.owner={data.owner} names: name one column for "
            "both, which keeps each owner's samples together, or leave one out."
        )


def _features(c: Config) -> Iterator[str]:
    """Refuse features of no network, of one that takes no images, or whose weights machines could not agree on."""
    features, data = c.features, c.data
    name, start = features.name, features.start
    if not name:
        for key, value in features.model_dump().items():
            if value != FeaturesSettings.model_fields[key].default:
                yield (
                    f"features.{key}={value} needs a network, and features.name is not set: set it, or leave it out."
                )
        return
    if name in MODELS and not takes(name, "images"):
        yield f"features.name={name} takes no images: choose one of {names('images')}."
    if data.kind != "images":
        yield (
            f"features.name={name} is for images, and {data.file or c.dataset} is {KINDS[data.kind]}: leave it out."
        )
    if not (_is_file(start) or _is_published(start)):
        yield (
            f"features.start={start} must be torchvision:NAME, or a .safetensors, .pth or .pt file: an absolute path, "
            "or a name below data-dir/weights; every machine reads it."
        )
    elif not features.sha256 and not _is_published(start):
        yield (
            f"features.start={start} needs features.sha256, the file's SHA-256, so that every machine reads the same: "
            "sha256sum prints it."
        )


def _taken(c: Config) -> Iterator[str]:
    """Refuse a table or series under a method of pictures; else a model, augmentation or codec of these."""
    named, kind = c.data.file or c.dataset, c.kind
    untaken = [not_taken(method, kind, named) for method in (c.method, *c.inner)]
    if kind != "images" and any(untaken):
        yield from (f"{why}." for why in untaken if why)
        return
    possible = ("images", "text") if kind == "images" else (kind,)
    for model in (c.model, *(m for s in c.methods.values() for m in s.models(c.model).values())):
        if model.name in MODELS and not any(takes(model.name, one) for one in possible):
            yield f"{misfit(model.name, kind)}."
    if kind == "images":
        return
    if c.wire.images not in ROWS:
        yield (
            f"wire.images={c.wire.images} is a coding of pictures, and {named} is {KINDS[kind]}: set wire.images to "
            "float32 or float16."
        )
    for section, settings in c.sections().items():
        for key, off in (("augment", "none"), ("dsa", ""), ("side", "full")):
            if (value := getattr(settings, key, off)) != off:
                yield (
                    f"{section}.{key}={value} changes pictures, and {named} is {KINDS[kind]}: leave it out, or set it "
                    f"to {off or 'nothing'}."
                )


def _originals(c: Config) -> Iterator[str]:
    """Refuse to send pictures that may be personal unchanged, unless the user allows it."""
    sent = c.settings.disclosure()
    if sent and sent.unchanged and is_user_data(c.dataset) and not c.data.send_originals:
        yield (
            f"method={c.method} with these settings sends real pictures as they are, and those of dataset={c.dataset} "
            "are taken to be personal: add data.send_originals=on if they may leave, or choose feddm with "
            "feddm.start=noise."
        )


def _site_places(c: Config) -> Iterator[str]:
    """Refuse folders or tables of simulated sites that are relative, named twice or not one a site."""
    for key, what, places in (
        (SITES_KEY, "folder", c.images.site_folders),
        (TABLES_KEY, "file", c.data.site_files),
    ):
        for place, times in Counter(places).items():
            if not place.is_absolute():
                yield f"{key} names {str(place)!r}: give absolute paths with commas between them."
            if times > 1:
                yield f"{key} names {place} twice: each site has its own {what}."
        if places and len(places) != c.federation.sites:
            yield (
                f"{key} names {len(places)} {what}s, one a site, and federation.sites={c.federation.sites}: "
                "leave federation.sites out, or make them equal."
            )


# ---- the round -----------------------------------------------------------------------------------


def _federation(c: Config) -> Iterator[str]:
    """Refuse a quorum above the number of sites or of those in a round, and batched sites in several processes."""
    federation = c.federation
    if federation.min_replies > federation.sites:
        yield (
            f"federation.min_replies={federation.min_replies} can never be met by "
            f"federation.sites={federation.sites}: lower the one or raise the other."
        )
    elif federation.min_replies > federation.asked:
        yield (
            f"federation.min_replies={federation.min_replies} can never be met where "
            f"federation.participation={federation.participation:g} asks {federation.asked} of "
            f"{federation.sites} sites a round: lower the one or raise the other."
        )
    if c.compute.batched != "off" and c.compute.workers > 1:
        yield (
            f"compute.batched={c.compute.batched} trains sites together in one process, and "
            f"compute.workers={c.compute.workers} divides them among several: leave one of the two out."
        )


def _robust(c: Config) -> Iterator[str]:
    """Refuse a robust average where none is taken, and Krum of too few replies."""
    federation = c.federation
    if not federation.combines:
        return
    asked = f"federation.robust={federation.robust}"
    if not c.settings.uses() and not resolve(c.method).averages:  # else those inside are checked
        yield (
            f"{asked} needs a method whose server only averages models, and method={c.method} does more: choose one of "
            f"{those_that('averages')}, or set federation.robust=clip."
        )
    f, replies, needed = federation.byzantine, federation.asked, federation.needed_by_krum
    if federation.robust == "krum" and replies < needed:
        yield (
            f"{asked} needs {needed} replies a round with federation.byzantine={f} (2 f + 3), and {replies} sites are "
            "asked: lower federation.byzantine, raise federation.sites or federation.participation, or choose "
            "federation.robust=median."
        )
    elif federation.robust == "krum" and federation.kept > replies - f:
        yield (
            f"federation.kept={federation.kept} of {replies} replies would keep one of federation.byzantine={f} "
            f"hostile ones for certain: set it to {replies - f} or less."
        )


def _evaluation(c: Config) -> Iterator[str]:
    """Refuse an evaluation on sites that hold out nothing, or two parts, or are private, and patience for no figure."""
    evaluation, data = c.evaluation, c.data
    judged = data.validated_at_sites or evaluation.on in ("server", "both")
    if evaluation.patience and not (
        judged and data.validation and not c.settings.trains_on_validation
    ):
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
    elif on_sites and data.site_holdout == 0:
        yield (
            f"evaluation.on={evaluation.on} needs images the sites hold out for it: "
            "set data.site_holdout above 0, such as 0.1."
        )
    asked = c.judged_at_sites
    if c.private and asked:
        cure = "data.validation=0" if asked.startswith("data.") else "evaluation.on=server or none"
        yield (
            f"{asked} has the sites report accuracies and losses of their own examples, which the privacy of this run "
            f"(method={c.method}) does not cover: set {cure}."
        )


def _wire(c: Config) -> Iterator[str]:
    """Refuse picture codecs for data that are not pictures, and error feedback without errors."""
    wire, sent = c.wire, c.settings.disclosure()
    if wire.pictures and sent is not None and sent.numbers:
        yield (
            f"wire.images={wire.images} cannot hold under method={c.method}, whose sites send {sent.payload}: these "
            "are no pictures, and would not be what was learned; set wire.images to float32, float16 or uint8."
        )
    if wire.error_feedback and not wire.updates:
        yield (
            f"wire.error_feedback=on is of updates that are coded, and wire.weights={wire.weights} codes none: set "
            "wire.weights=int8, or leave it out."
        )


def _track(c: Config) -> Iterator[str]:
    """Refuse to show a tracker pictures of a set that is not public, or none a tracker."""
    if not c.track.images:
        return
    if c.track.by == "none":
        yield (
            "track.images=on shows images to a tracker, and none is chosen: add track=tensorboard or track=mlflow, or "
            "leave it out."
        )
    if is_user_data(c.dataset):
        yield (
            f"track.images=on would copy pictures of dataset={c.dataset}, which are taken to be personal, to a "
            "tracker: leave it out; the figures are tracked without it."
        )


def _privacy(c: Config) -> Iterator[str]:
    """Refuse differential privacy where something would leave the sites past its noise."""
    method, sent, known = c.method, c.settings.disclosure(), resolve(c.method)
    if c.clips_updates:
        return
    if not c.privacy.active:
        if known.private and sent is not None and sent.differentially_private:
            yield (
                f"{known.name}.mechanism promises noise, and privacy.noise_multiplier is 0: set it above 0, such as 1."
            )
        return
    asked = f"privacy.noise_multiplier={c.privacy.noise_multiplier:g}"
    if why := c.settings.unprotected(c.privacy).replace("{section}", known.name):
        yield f"{asked} cannot hold under method={method}: {why}."
    elif not known.private:
        yield (
            f"{asked} asks for differential privacy, which method={method} does not have: choose one of "
            f"{those_that('private')}, or leave it at 0."
        )
    if sent is not None and sent.class_counts and c.privacy.counts != "public":
        yield (
            f"{asked} cannot hold under method={method}, whose sites report their number of examples of every class: "
            "set privacy.counts=public where these are no secret, or choose another method."
        )


# ---- networks ------------------------------------------------------------------------------------


def _class_weights(c: Config) -> Iterator[str]:
    """Refuse weights of classes under noise, or where another loss than the task's is trained by."""
    chosen = getattr(c.settings, "class_weights", "none")
    if chosen == "none":
        return
    if c.private:
        yield (
            f"class_weights={chosen} under method={c.method} weighs an example by how many there are of its class, "
            "which no noise covers: leave it out, or set it to none."
        )
    elif c.method in METHODS and not METHODS[c.method].plain:
        yield (
            f"class_weights={chosen} under method={c.method} applies to the loss that sites train by under "
            f"{those_that('plain')}: choose one of these, or set it to none."
        )


def _head(c: Config) -> Iterator[str]:
    """Refuse to train the last layer alone where a method trains others."""
    if c.model.train == "head" and not resolve(c.method).head:
        yield (
            f"model.train=head cannot hold under method={c.method}, which does not leave the other layers as they are: "
            f"choose one of {those_that('head')}, or set model.train=all."
        )


def _statistics(c: Config) -> Iterator[str]:
    """Refuse to keep a part of the model at the sites if the server needs a complete one."""
    if not c.model.stays_in_part:
        return
    stays, sent = c.model.what_stays, c.settings.disclosure()
    if c.evaluation.on in ("server", "both"):
        yield (
            f"{stays} leaves the server no model to evaluate, and evaluation.on={c.evaluation.on} asks it "
            "to: set evaluation.on=sites with data.site_holdout above 0, or evaluation.on=none."
        )
    asked = {"personal": c.model.personal != "none", "statistics": c.model.statistics == "local"}
    kept = {part for part, chosen in asked.items() if chosen} <= {*resolve(c.method).keeps}
    if sent is None or not sent.update or not kept:
        yield (
            f"{stays} is for methods whose sites train the model and send its weights, and "
            f"method={c.method} does not: choose fedavg or one of its kind, or leave it out."
        )


def _model(c: Config) -> Iterator[str]:
    """Refuse weights to start from that are no file by absolute path, and none of torchvision's."""
    start = c.model.start
    if start and not ((_is_file(start) and PurePath(start).is_absolute()) or _is_published(start)):
        yield (
            f"{START_KEY}={start} must be torchvision:NAME, or an absolute path to a .safetensors, .pth or .pt file, "
            "as safetensors.torch.save_file or torch.save writes a state_dict."
        )
    if c.model.sha256 and not start:
        yield f"model.sha256 is set, and {START_KEY} is not: set it, or leave model.sha256 out."


def _is_file(start: str) -> bool:
    return start.endswith((".safetensors", ".pth", ".pt"))


def _is_published(start: str) -> bool:
    return re.fullmatch(r"torchvision:\w+", start) is not None
