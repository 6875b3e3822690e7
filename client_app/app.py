"""The ClientApp: from a message to the method's client and back. It knows no method."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from client_app.arrivals import ARRIVALS
from client_app.deadline import Deadline
from client_app.device import DeviceClient, Metrics, client_class
from client_app.owner.node_config import NodeConfig
from client_app.owner.private_files import for_the_owner_alone, is_reserved
from client_app.owner.review import Review
from client_app.owner.vetoes import check_instruction
from client_app.partitions import require_one_for_all, sizes_of_all
from client_app.reasons import reason_of
from client_app.releases import ReleaseLog, payload_line, refusal_line
from client_app.site import (
    account_of,
    data_here,
    division_of,
    drawn_name,
    engine_of,
    is_simulated,
    name_of,
    own_folder,
    partition_of,
    require_data_of_run,
    site_of,
    site_samples,
    state_directory,
    state_of,
)
from common.code.fingerprint import source_fingerprint
from common.division import Division
from common.errors import FederationError, one_line
from common.learning.compute import use_threads
from common.learning.patience import checked_by
from common.learning.run import Run
from common.privacy.head import Head
from common.privacy.told import HEAD, HEADS, RECORD, own_of, read_head
from common.samples.inputs import Samples
from common.specs.names import DATA, EVALUATION, REASON, TRAINING_FAILED
from common.wire.flower_arrays import array_of, filled, record_of

#: Flower's own code for a ClientApp that raised
RAISED = 2

#: for reading its images at the roll call, where a site's owner names no other time
ROLL_CALL_SECONDS = 3600.0

_RECORD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

NO_LOG = "this site's log of what leaves it cannot be written, so that nothing leaves it"
"""What a server is told where no more may be said."""

logger = getLogger("flwr")

app = ClientApp()

Handler = Callable[[Message, Context], RecordDict]


def reply(message: Message, context: Context, handle: Handler) -> Message:
    """Answer ``message`` with what ``handle`` returns, or with one sentence on what went wrong.

    A real site keeps what it writes to itself, and notes the sentence in its own log.
    """
    if is_simulated(context):
        try:
            return Message(handle(message, context), reply_to=message)
        except Exception as error:
            reason = reason_of(error, owner=False)
            return Message(Error(code=RAISED, reason=reason), reply_to=message)
    try:
        for config in message.content.config_records.values():
            check_instruction(config)
        with for_the_owner_alone(state_directory(context)):
            return Message(handle(message, context), reply_to=message)
    except Exception as error:
        reason = _noted(reason_of(error, owner=True), message, context)
        return Message(Error(code=RAISED, reason=reason), reply_to=message)


def _noted(reason: str, message: Message, context: Context) -> str:
    """Note in the site's log that ``reason`` leaves, and return it, or ``NO_LOG`` if it cannot be noted."""
    try:
        directory = state_directory(context)
    except FederationError:
        return reason  # no path, no log
    if directory is None:
        return reason
    config = message.content.config_records.get("config", ConfigRecord())
    asked, record = config.get("server-round"), one_line(str(config.get("record", "")))
    log = ReleaseLog(
        directory, {"run": context.run_id, "record": record[:128], "site": name_of(context)}
    )
    server_round = asked if isinstance(asked, int) else 0
    try:
        log.append(refusal_line(server_round, message.metadata.message_type, reason))
    except OSError as error:
        logger.error("%s cannot be written: %s", directory, error)
        return NO_LOG
    return reason


def client_of(message: Message, context: Context) -> DeviceClient:
    """Return the client that ``message`` is for: the chosen method's, with this site's data and state."""
    division = division_of(context)
    run = division.run
    use_threads(run.config.compute.client_cores)
    site, drawn_as = site_of(run, context), drawn_name(run, context)
    with checked_by(_time_to_read(context, _config(message)).check):
        train, holdout = site_samples(division, drawn_as, context)
    record_id = str(_config(message).get("record", ""))
    if not _RECORD_ID.fullmatch(record_id) or is_reserved(record_id):
        raise FederationError(
            f"the server names its run {record_id[:40]!r}, which cannot be part of a file name here"
        )
    state = state_of(run, record_id, site, context)
    cls = client_class(run.config.method)
    told = one_line(str(_config(message).get(DATA, ""))[:16])
    require_data_of_run(division, context, state, told)
    own_data = own_folder(run, context) is not None
    review = None if is_simulated(context) else Review.of(NodeConfig.of(context.node_config))
    account = account_of(run, record_id, site, context)
    if account is not None:
        account.check(_seen(message))
    return cls(
        *(run, site, train, holdout, state),
        own_data=own_data,
        review=review,
        account=account,
        drawn_as=drawn_as,
    )


def _time_to_read(context: Context, asked: Mapping[str, Any] | None = None) -> Deadline:
    """Return until when a real site reads and divides images; a simulation takes its time.

    Parameters
    ----------
    context : Context
        The node's; its owner bounds a roll call.
    asked : mapping, optional
        The configuration of an instruction, which may leave less; None at the roll call.
    """
    if is_simulated(context):
        return Deadline()
    own = NodeConfig.of(context.node_config).roll_call_seconds or ROLL_CALL_SECONDS
    if asked is None:
        return Deadline(own, of="roll call")
    return Deadline(min(own, Deadline.of(asked).left))


def _config(message: Message, name: str = "config") -> ConfigRecord:
    found = message.content.get(name)
    if not isinstance(found, ConfigRecord):
        raise FederationError(f"the instruction's '{name}' is not a configuration")
    return found


def _arrays(message: Message) -> list[NDArray[Any]]:
    found = message.content.get("arrays")
    if not isinstance(found, ArrayRecord):
        raise FederationError("the instruction's 'arrays' are none")
    return ARRIVALS.arrays_of(found)


def _seen(message: Message) -> Head | None:
    """Return the last head of this site's ledger that the server says it saw."""
    named = _config(message).get(HEAD)
    return None if named is None else _read(read_head, str(named), HEAD)


def _read(read: Callable[[str], Head | None], text: str, key: str) -> Head | None:
    """Return what ``read`` makes of a text of the server's."""
    try:
        return read(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise FederationError(f"the instruction's {key} is not the head of a ledger") from None


def figures(metrics: Metrics, examples: int) -> MetricRecord:
    """Return a client's figures as Flower sends them, with the count that strategies weight by."""
    values = {key: float(value) for key, value in metrics.items()}
    return filled(MetricRecord(), {**values, "num-examples": examples})


def _train(message: Message, context: Context) -> RecordDict:
    client = client_of(message, context)
    arrays, examples, metrics = client.fit(
        _arrays(message),
        dict(_config(message)),
    )
    content = filled(
        RecordDict(),
        {
            "arrays": record_of(map(array_of, arrays)),
            "metrics": figures(metrics, examples),
            "about": filled(ConfigRecord(), {"site": client.site}),
        },
    )
    if (told := client.draws.told) is not None:
        content[RECORD] = ConfigRecord({**told.to_config()})
    return content


def _evaluate(message: Message, context: Context, asked: str = "config") -> RecordDict:
    client = client_of(message, context)
    loss, examples, metrics = client.evaluate(
        _arrays(message),
        dict(_config(message, asked)),
    )
    return RecordDict(
        {
            "metrics": figures({**metrics, "loss": loss}, examples),
            "about": ConfigRecord({"site": client.site}),
        }
    )


def _evaluate_and_train(message: Message, context: Context) -> Message:
    """Answer an instruction on which an evaluation rides: what fails of the two is said beside what the other gave."""
    judged = reply(message, context, partial(_evaluate, asked=EVALUATION))
    trained = reply(message, context, _train)
    content = trained.content if trained.has_content() else RecordDict()
    if trained.has_error():
        content[TRAINING_FAILED] = ConfigRecord({REASON: str(trained.error.reason)})
    if judged.has_error():
        content[EVALUATION] = ConfigRecord({REASON: str(judged.error.reason)})
    else:
        content[EVALUATION] = judged.content["metrics"]
    return Message(content, reply_to=message)


def _class_counts(run: Run, train: Samples) -> list[int]:
    counts = run.task.class_counts(train.labels)
    if counts is None:
        raise FederationError(
            f"{run.config.dataset} has no classes to count, by which {run.config.method} is set to weight the sites: "
            "choose another weighting, or another method"
        )
    return counts


def _refuse_counts(run: Run, site: str) -> None:
    """Refuse to tell more of a site's numbers than the run has it tell."""
    if not run.config.tells_counts:
        raise FederationError(
            f"site '{site}' tells no number of examples of a class, and none that it holds out, in a private run with "
            "privacy.counts=one: set privacy.counts=public if they are, or choose another weighting"
        )


def _checksum_told(division: Division, context: Context) -> dict[str, str]:
    """Return the checksum of what this process reads; nothing of data that are a real site's own."""
    own = "data" in context.node_config
    return {} if own else {DATA: data_here(division, context).checksum}


def _roll_call(message: Message, context: Context) -> RecordDict:
    division = division_of(context)
    run = division.run
    use_threads(run.config.compute.client_cores)
    site = site_of(run, context)
    with checked_by(_time_to_read(context).check):
        train, holdout = site_samples(division, drawn_name(run, context), context)
    asked = _config(message)
    account = account_of(run, "", site, context)
    if account is not None and HEADS in asked:
        account.check(_read(partial(own_of, site=site), str(asked[HEADS]), HEADS))
    sizes: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": len(train) if run.config.tells_counts else min(1, len(train)),
        "num-partitions": int(context.node_config.get("num-partitions", 0)),
    }
    if asked.get("class-counts") or asked.get("held-out"):
        _refuse_counts(run, site)
    if asked.get("class-counts"):
        sizes["class-counts"] = _class_counts(run, train)
    if asked.get("held-out"):
        sizes["num-held-out"] = len(run.task.counted(holdout.labels))
    if "state-dir" in context.node_config:
        line = payload_line(0, "roll-call", "", [], list(sizes))
        state_of(run, "", site, context).log_release(line)
    return RecordDict(
        {
            "about": ConfigRecord(
                {
                    "site": site,
                    "source": source_fingerprint(),
                    "partition-id": int(context.node_config.get("partition-id", -1)),
                    "engine": engine_of(context),
                    **_checksum_told(division, context),
                    "reviewed": not is_simulated(context) and "review-dir" in context.node_config,
                }
            ),
            "sizes": MetricRecord(sizes),
        }
    )


def _partitions(message: Message, context: Context) -> RecordDict:
    division = division_of(context)
    run = division.run
    require_one_for_all(run, context)
    asked = _config(message)
    by_class, held_out = bool(asked.get("class-counts")), bool(asked.get("held-out"))
    if by_class or held_out:
        _refuse_counts(run, site_of(run, context))
    _, number = partition_of(context)
    sizes = ArrayRecord()
    for name, counts in sizes_of_all(
        division, number, by_class=by_class, held_out=held_out
    ).items():
        sizes[name] = array_of(counts)
    about = {"source": source_fingerprint(), **_checksum_told(division, context)}
    return RecordDict({"about": ConfigRecord({**about}), "sizes": sizes})


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run a phase of the method's client, and before it judge the weights that came where that is asked for."""
    if isinstance(message.content.get(EVALUATION), ConfigRecord):
        return _evaluate_and_train(message, context)
    return reply(message, context, _train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Judge the weights on the images this site holds out."""
    return reply(message, context, _evaluate)


@app.query("roll_call")
def roll_call(message: Message, context: Context) -> Message:
    """Say who this site is, how many images it has and which source it runs."""
    return reply(message, context, _roll_call)


@app.query("partitions")
def partitions(message: Message, context: Context) -> Message:
    """Say of each node of a simulation in this process what it would answer to the roll call."""
    return reply(message, context, _partitions)
