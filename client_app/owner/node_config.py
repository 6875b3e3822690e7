"""A site's node config: the keys of its SuperNode, which only its owner can set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from common.errors import FederationError, nearest

MAX_SIZE, MAX_CLASSES = 256, 1000
"""Pixels a side, and names of classes, that a run may ask for at a site whose owner names no other bound."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _key(
    example: str, meaning: str, otherwise: str = "", *, allowed: str = "", **field: Any
) -> Any:
    """Declare a key: how it is written, what it does, what holds without it, and what to write where it is wrong.

    docs/reference/node-config.md is made of these, and links in them are relative to it.
    """
    notes: dict[str, Any] = {"otherwise": otherwise, "allowed": allowed}
    default = field.pop("default", None)
    return Field(default, description=meaning, examples=[example], json_schema_extra=notes, **field)


def _whole(example: int, meaning: str, otherwise: str = "any", least: int = 0, **field: Any) -> Any:
    allowed = f"give an integer, {least} or more"
    return _key(str(example), meaning, otherwise, allowed=allowed, ge=least, **field)


def _amount(
    example: str, meaning: str, otherwise: str, *, below: float | None = None, **field: Any
) -> Any:
    most = "" if below is None else f" and below {below:g}"
    allowed = f"give a number above 0{most}"
    return _key(
        example, meaning, otherwise, allowed=allowed, gt=0, lt=below, allow_inf_nan=False, **field
    )


def absolute(key: str, named: object) -> Path:
    """Return a path of the node config's; FederationError if it is relative."""
    path = Path(str(named))
    if not path.is_absolute():
        raise FederationError(
            f"the node config's {key} '{named}' is relative: give an absolute path",
            reported=f"the node config's {key} is relative: its owner gives an absolute path",
        )
    return path


def _words(given: Any) -> tuple[str, ...]:
    if not isinstance(given, str):
        raise ValueError("no text")
    return tuple(word for word in re.split(r"[\s,]+", given.strip()) if word)


def _modules(given: Any) -> tuple[str, ...]:
    names = _words(given)
    for name in names:
        if not _MODULE.fullmatch(name):
            raise FederationError(
                f"the node config says allow-imports={given!r}, in which {name!r} is no module: name modules "
                "such as torchvision.models, with spaces or commas between them"
            )
    return names


def _path(given: Any, info: ValidationInfo) -> Path:
    return absolute(_dashed(str(info.field_name)), given)


Absolute = Annotated[Path | None, BeforeValidator(_path)]
Words = Annotated[tuple[str, ...] | None, BeforeValidator(_words)]
Modules = Annotated[tuple[str, ...] | None, BeforeValidator(_modules)]

_IN_WORDS = "write words in quotes, with spaces between them"


class NodeConfig(BaseModel):
    """The keys that there are, each of which a site's owner may leave out.

    What a name and a partition can be is seen where they are used, together with what the run says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=_dashed)

    site: Any = _key(
        "'NAME'",
        "its name in records, logs and states",
        "`partition-I`, or the folder's last part",
    )
    partition_id: Any = _key("I", "its share of a data set that every site has, from 0")
    num_partitions: Any = _key("K", "how many such shares there are")
    data: Absolute = _key(
        "'/abs/folder'",
        "its own images instead, `FOLDER/<class>/*.png`, or its own table, a .csv file",
    )
    state_dir: Absolute = _key(
        "'/abs/folder'",
        "what must survive a restart of its SuperNode, decoded copies of its images, the log of what left it, and its "
        "[privacy ledger](../site.md#the-privacy-ledger)",
        "memory is lost with the SuperNode, no log; nothing that needs a ledger is taken part in",
    )
    data_root: Absolute = _key(
        "'/abs/folder'",
        "everything that a run's settings may have the site read or write is below it (`data-dir`, `images.folder`, "
        "`data.file`, a data set's files, stores), links followed",
        "the machine's data directory (`NECTAR_DATA`)",
    )
    device: str | None = _key(
        "'cuda:0'",
        "where it computes",
        "the run's `compute.device`",
        allowed="choose auto, cpu, cuda or cuda:N",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
    )
    cores: int | None = _whole(
        2, "on how many threads it computes", "the run's `compute.client_cores`", least=1
    )
    allow_imports: Modules = _key(
        "'torchvision.models mymodels'",
        "modules and packages that the site imports where a run names them "
        "([own-parts.md](../own-parts.md#at-a-site-of-a-real-federation))",
        "none but the app it was sent",
        allowed=_IN_WORDS,
    )
    allow_download: bool = _key(
        "true",
        "missing files of a data set may be fetched",
        "`false`: nothing is",
        default=False,
        allowed="write true or false",
    )
    allow_methods: Words = _key(
        "'feddm fedavg'",
        "the methods it takes part in, those inside another too (`fedssyn scaffold`); a Flower strategy is `fedavg`, "
        "whose devices serve it",
        "all",
        allowed=_IN_WORDS,
    )
    allow_start: Words = _key(
        "'noise'",
        "what things that are sent may start from: `noise`, `means` (of classes), `real` (examples, or means of a "
        "few, `feddm.start=mix:K`; `method=real` is among them)",
        "all",
        allowed=_IN_WORDS,
    )
    max_iterations: int | None = _whole(
        1000, "the most steps of a distillation that a run may request, under any setting's name"
    )
    max_epochs: int | None = _whole(10, "the most passes of local training")
    max_ipc: int | None = _whole(50, "the most synthetic images a class")
    max_images: int | None = _whole(
        5000,
        "the most synthetic images in all; a run then has to state the number (`fedssyn.size`)",
    )
    max_size: int | None = _whole(224, "the largest images, in pixels a side", str(MAX_SIZE))
    max_cores: int | None = _whole(
        4,
        "a run that asks for more threads is refused; `cores` needs no asking",
        "the machine's cores",
    )
    max_classes: int = _whole(
        2000, "the most names in `images.classes`", f"{MAX_CLASSES:,}", 1, default=MAX_CLASSES
    )
    max_parameters: int | None = _whole(
        20_000_000,
        "the largest model, and network of features.*, in numbers of its state; counted before it is built",
        least=1,
    )
    min_class: int = _whole(
        20,
        "a method that distils or sends examples is refused where the site has fewer of a class than that (and more "
        "than none)",
        "0",
        default=0,
    )
    roll_call_seconds: float | None = _amount(
        "7200", "how long it reads its images, or divides those of a run, at most", "3600"
    )
    privacy_epsilon: float | None = _amount(
        "3",
        "the most that all runs together may cost an example of this site, by its "
        "[ledger](../site.md#the-privacy-ledger). A phase that would pass it is refused before it draws; a run that is "
        "not private throughout is refused at the "
        "roll call, since a budget bounds nothing without it",
        "no bound, and the ledger is kept all the same",
    )
    privacy_delta: float | None = _amount(
        "1e-6", "the delta at which `privacy-epsilon` is stated", "1e-5", below=1
    )
    review_dir: Absolute = _key(
        "'/abs/folder'",
        "images that are about to leave are put there first, a picture each: all of them leave, or none, by the "
        "owner's word ([site.md](../site.md#your-word))",
        "no review takes place",
    )
    review_seconds: int | None = _whole(
        600,
        "how long the owner's word is waited for; a later one counts when the server asks again",
        "600",
        least=1,
    )
    review_command: str | None = _key(
        "'/abs/program --its words'",
        "decides in the owner's place, called with the folder; 0 sends all of it, another code none",
        "the owner decides",
        allowed="write a command in quotes",
    )
    approve: Literal["ask", "list"] | None = _key(
        "'ask'",
        "nothing of a run is imported before the owner has approved its app and settings "
        "([site.md](../site.md#your-word)); `list`: only what is approved ahead of time. `nectar site` alone can",
        "every run begins",
        allowed="choose ask or list",
    )
    approve_seconds: int | None = _whole(
        7200,
        "how long to wait for the owner's decision on a run; the server is notified",
        "3600",
        least=1,
    )
    simulated: Any = Field(None, exclude=True, description="the in-process engine's own key")

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> Self:
        """Read a node config.

        Raises
        ------
        FederationError
            If it has a key that there is not, since a veto with a slip in its name would veto nothing, or a value that
            cannot be one.
        """
        return cls._read(tuple((key, type(value), value) for key, value in node_config.items()))

    @classmethod
    @lru_cache(maxsize=4096)
    def _read(cls, items: tuple[tuple[str, type, Any], ...]) -> Self:
        node_config = {key: value for key, _, value in items}
        for key in node_config:
            if key not in KEYS:
                raise _unknown(key)
        try:
            return cls.model_validate(node_config)
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            notes: Any = KEYS[key].json_schema_extra
            raise FederationError(
                f"the node config says {key}={node_config[key]!r}: {notes['allowed']}"
            ) from None


KEYS = {_dashed(name): field for name, field in NodeConfig.model_fields.items()}
"""Every key that there is."""


def _unknown(key: str) -> FederationError:
    guess = nearest(key, KEYS)
    named = ", ".join(key for key, field in KEYS.items() if not field.exclude)
    hint = f"did you mean {guess}?" if guess else f"there are {named}"
    return FederationError(f"the node config has the key {key[:60]!r}, which means nothing: {hint}")
