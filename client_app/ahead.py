"""Many simulated sites of one process trained as one stacked model, ahead of each site's own instruction.

The in-process grid shows the instructions that are next. Where `compute.batched` says so, what all of them train is
trained at once; each then goes its own way through the site as ever, and finds its trained model here. Payload, log,
checks and judging stay each site's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import nn

from client_app.decode_cache import DECODE_CACHE
from client_app.device import DeviceClient, TrainedAhead, client_class
from client_app.site import division_of
from common.errors import NectarError, one_line
from common.learning.compute import use_threads
from common.learning.run import Run
from common.learning.stacked import SiteTraining, cannot_stack, train_stacked
from common.settings.fedavg import FedAvgSettings
from common.specs.updates import model_in

SMALL = 1 << 16
"""Parameters up to which ``compute.batched=auto`` trains sites as one on a CPU: above, a step is not its overhead."""

MOST = 256
"""Sites that ``auto`` trains together, and the megabytes that any number of them may hold."""

ClientOf = Callable[[Message, Context], DeviceClient]

PURPOSE = "local-training"
"""What a site's batches are drawn for, alone or together."""

logger = getLogger("flwr")


_CLIENTS: dict[str, DeviceClient] = {}
"""Those that were made ahead, by the id of the instruction that they are for."""


@lru_cache(maxsize=16)
def together(run: Run) -> int:
    """Return how many sites of a run are trained together at most; 1 for one by one.

    Raises
    ------
    ConfigError
        If the model cannot be built.
    """
    asked = run.config.compute.batched
    if asked == "off":
        return 1
    if why := refused(run):
        logger.warning("compute.batched=%s, but sites train one by one: %s", asked, why)
        return 1
    model = run.build_model()
    size = sum(p.numel() for p in model.parameters())
    if asked == "auto" and run.device.type == "cpu" and not (size <= SMALL and _is_linear(model)):
        return 1
    copies = 5  # the stacked parameters, their gradients, momentum, what a step makes, its terms
    fitting = max(1, (MOST << 20) // (copies * 4 * size))
    return min(MOST if asked == "auto" else int(asked), fitting)


@lru_cache(maxsize=16)
def refused(run: Run) -> str:
    """Return why the sites of a run cannot be trained together, in a few words; empty if they can."""
    config, client = run.config, client_class(run.config.method)
    if "local" not in vars(client):  # a class that inherits it may do more around it
        return f"the sites of method={config.method} do more than plain local training"
    if config.privacy.active or config.model.train != "all" or config.model.stays_in_part:
        return "private steps, model.train=head and models of the sites' own are trained one site at a time"
    settings = run.settings(FedAvgSettings)
    if settings.class_weights != "none" or config.compute.precision != "float32":
        return "class weights and bfloat16 are taken one site at a time"
    return cannot_stack(run.build_model(), settings, run.task)


def _is_linear(model: nn.Module) -> bool:
    leaves = (m for m in model.modules() if not list(m.children()))
    return all(isinstance(m, nn.Linear | nn.ReLU | nn.Flatten | nn.Identity) for m in leaves)


def train_stacked_ahead(due: Iterator[tuple[Message, Context]], client_of: ClientOf) -> int:
    """Train what the first of the instructions ``due`` ask for; return how many of them were looked at.

    ``client_of`` makes the client that an instruction is for. One that cannot be followed, such as one of which the
    site's data cannot be read, is left to its site, which says why.
    """
    _CLIENTS.clear()
    message, context = first = next(due)
    try:
        run = division_of(context).run
        number = together(run)
        config = message.content.config_records.get("config", ConfigRecord())
        if number == 1 or config.get("phase") != "train":
            return number
        use_threads(run.config.compute.client_cores)
        _train(run, config, [first, *islice(due, number - 1)], client_of)
    except (NectarError, KeyError, ValueError) as error:
        logger.debug("sites are trained one by one: %s", error)
        return 1
    except RuntimeError as error:  # torch's, such as of a forward pass that looks at numbers
        logger.warning("compute.batched: sites train one by one: %s", one_line(str(error)))
        return 1
    return number


def _train(
    run: Run, config: ConfigRecord, due: Sequence[tuple[Message, Context]], client_of: ClientOf
) -> None:
    """Train the sites of ``due`` that were sent the same weights as the first."""
    server_round, sent = int(str(config["server-round"])), due[0][0].content["arrays"]
    assert isinstance(sent, ArrayRecord)
    due = [(m, c) for m, c in due if _are_same(m.content["arrays"], sent)]
    started = time.perf_counter()
    clients, sites, start = list[DeviceClient](), list[SiteTraining](), None
    for message, context in due:
        client = _CLIENTS[message.metadata.message_id] = client_of(message, context)
        if not len(client.samples):
            continue
        client.begin(dict(message.content["config"]))
        _, takes = client.phase_named("train")
        given = DECODE_CACHE.decode(DECODE_CACHE.arrays_of(sent), takes(run))
        local, start = client.local(given), model_in(given)
        if local is not None and local.by_terms_alone:
            clients.append(client)
            sites.append(SiteTraining(client.samples, client.generator(PURPOSE), local))
    if not sites or start is None:
        return
    model, settings = run.model_with(start), run.settings(FedAvgSettings)
    ended = train_stacked(model, sites, settings, server_round=server_round)
    share = (time.perf_counter() - started) / len(clients)
    for client, (parameters, trained) in zip(clients, ended, strict=True):
        client.trained_ahead = TrainedAhead(parameters, trained, share)


def _are_same(one: object, other: ArrayRecord) -> bool:
    """Return whether two instructions carry the same bytes, as those of one round in one process do."""
    return isinstance(one, ArrayRecord) and all(
        a.data is b.data for a, b in zip(one.values(), other.values(), strict=True)
    )


def take_client(message: Message) -> DeviceClient | None:
    """Return the client that was made for an instruction ahead of it, once."""
    return _CLIENTS.pop(message.metadata.message_id, None)
