"""The ClientApp: from a message to the method's client and back, refusals in words included. It knows no method."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from client_app.ahead import take_client, train_stacked_ahead
from client_app.decode_cache import DECODE_CACHE
from client_app.device import DeviceClient, client_class
from client_app.draws import KEY, Deadline
from client_app.owner.node_config import NodeConfig
from client_app.owner.review import Review
from client_app.owner.vetoes import check_instruction
from client_app.site import (
    account_of,
    config_of,
    data_here,
    division_of,
    drawn_name,
    engine_of_context,
    is_simulated,
    name_of,
    require_data_of_run,
    site_of,
    site_samples,
    sites_of,
    state_directory,
    state_of,
    user_folder,
)
from client_app.state import ARTIFACTS, LOG, ReleaseLog, payload_line, refusal_line
from common.code.fingerprint import source_fingerprint
from common.data.store import STORE_FOLDER
from common.errors import FederationError, NectarError, one_line, reason
from common.learning.compute import use_threads
from common.learning.run import Run
from common.privacy.ledger import (
    HEAD_FILE,
    LEDGER,
    LEDGER_TIP,
    LEDGER_TIPS,
    RECORD,
    LedgerTip,
    tip_from_text,
    tip_of_site,
)
from common.samples.inputs import Samples
from common.sites import IN_PROCESS, Site
from common.specs.updates import DATA, EVALUATION, EXCEPTION, REASON, TRAINING_FAILED
from common.storage.limits import deadline_check
from common.wire.npy import array_of, lazy_array_of, record_of, unchecked_record

#: Flower's own code for a ClientApp that raised
RAISED = 2

APPROVED = "NECTAR_SITE_APPROVED"
"""The environment variable in which `nectar site` names the run that its owner has approved."""

#: for reading its images at the roll call, where a site's owner names no other time
ROLL_CALL_SECONDS = 3600.0

_RECORD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

LOG_UNWRITABLE = "this site's log of what leaves it cannot be written, so that nothing leaves it"
"""The reason that a server gets where the details may not leave the site."""

logger = getLogger("flwr")


class SiteApp(ClientApp):
    """Flower's ClientApp, to which a grid of the same process can show what is next."""

    def train_stacked_ahead(self, due: Iterator[tuple[Message, Context]]) -> int:
        """Train sites together where the run says so; return how many of the instructions were looked at."""
        return train_stacked_ahead(due, client_of)

    def sites_of(
        self, context: Context, nodes: Sequence[int], *, by_class: bool, held_out: bool
    ) -> list[Site]:
        """Return what each of ``nodes`` of this process would answer to the roll call; none where it is to be asked.

        A site reports what is wrong with a run when it gets its own message.
        """
        try:
            return sites_of(division_of(context), nodes, by_class=by_class, held_out=held_out)
        except Exception as error:
            logger.debug("each site gets its own message: %s", error)
            return []


app = SiteApp()

Handler = Callable[[Message, Context], RecordDict]


def reply(message: Message, context: Context, handle: Handler) -> Message:
    """Answer ``message`` with what ``handle`` returns, or with one sentence on what went wrong.

    A real site keeps what it writes to itself, and notes the sentence in its own log.
    """
    if is_simulated(context):
        try:
            return Message(handle(message, context), reply_to=message)
        except Exception as error:
            config = message.content.config_records.get("config", ConfigRecord())
            log = partial(_log_once, str(config.get("record", "")))
            reason = reason_for_server(error, owner=False, log=log)
            return Message(Error(code=RAISED, reason=reason), reply_to=message)
    try:
        with for_the_owner_alone(state_directory(context)):
            _check_asked(message, context)
            return Message(handle(message, context), reply_to=message)
    except Exception as error:
        reason = _log_refusal(reason_for_server(error, owner=True), message, context)
        return Message(Error(code=RAISED, reason=reason), reply_to=message)


def _check_asked(message: Message, context: Context) -> None:
    """Refuse what no instruction says, and a site whose owner approves runs under a program that does not ask."""
    if "approve" in context.node_config and os.environ.get(APPROVED) != str(context.run_id):
        raise FederationError(
            "the node config says approve, which `nectar site` alone keeps: its owner starts this site with that"
        )
    for config in message.content.config_records.values():
        check_instruction(config)


def _log_refusal(reason: str, message: Message, context: Context) -> str:
    """Note in the site's log that ``reason`` leaves, and return it, or ``LOG_UNWRITABLE`` if it cannot be noted."""
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
        return LOG_UNWRITABLE
    return reason


def client_of(message: Message, context: Context) -> DeviceClient:
    """Return the client that ``message`` is for: the chosen method's, with this site's data and state."""
    division = division_of(context)
    run = division.run
    use_threads(run.config.compute.client_cores)
    site, drawn_as = site_of(run, context), drawn_name(run, context)
    with deadline_check(_time_to_read(context, config_of(message)).check):
        train, holdout = site_samples(division, drawn_as, context)
    record_id = _record_of(message)
    state = state_of(run, record_id, site, context)
    cls: Callable[..., DeviceClient] = client_class(run.config.method)
    stated = one_line(str(config_of(message).get(DATA, ""))[:16])
    require_data_of_run(division, context, state, stated)
    user_data = user_folder(run, context) is not None
    review = (
        None
        if is_simulated(context)
        else Review.of(NodeConfig.of(context.node_config), context.run_id)
    )
    account = account_of(run, record_id, site, context)
    if account is not None:
        account.check(_seen(message))
    if run.config.secret:  # the site's part of a sum leaves instead of its result
        from client_app.secret import secret_client  # its cryptography, for who asks

        cls = secret_client(client_class(run.config.method), message, context, run, site, record_id)
    return cls(
        *(run, site, train, holdout, state),
        user_data=user_data,
        review=review,
        account=account,
        drawn_as=drawn_as,
    )


def _record_of(message: Message) -> str:
    """Return the name of the run's record; FederationError if no file could be called so."""
    record_id = str(config_of(message).get("record", ""))
    if not _RECORD_ID.fullmatch(record_id) or record_id.lower() in _OWN:
        raise FederationError(
            f"the server names its run {record_id[:40]!r}, which cannot be part of a file name"
        )
    return record_id


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


def _arrays(message: Message) -> list[NDArray[Any]]:
    found = message.content.get("arrays")
    if not isinstance(found, ArrayRecord):
        raise FederationError("the instruction's 'arrays' are not arrays")
    return DECODE_CACHE.arrays_of(found)


def _seen(message: Message) -> LedgerTip | None:
    """Return the last head of this site's ledger that the server says it saw."""
    named = config_of(message).get(LEDGER_TIP)
    return None if named is None else _read(tip_from_text, str(named), LEDGER_TIP)


def _read(read: Callable[[str], LedgerTip | None], text: str, key: str) -> LedgerTip | None:
    """Return what ``read`` makes of a text of the server's."""
    try:
        return read(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise FederationError(f"the instruction's {key} is not the head of a ledger") from None


def figures(metrics: Mapping[str, Any], examples: int) -> MetricRecord:
    """Return a client's figures as Flower sends them, with the count that strategies weight by."""
    values = {k: value if isinstance(value, list) else float(value) for k, value in metrics.items()}
    return unchecked_record(MetricRecord(), {**values, "num-examples": examples})


def _train(message: Message, context: Context) -> RecordDict:
    client = take_client(message) or client_of(message, context)
    arrays, examples, metrics = client.fit(
        _arrays(message),
        dict(config_of(message)),
    )
    in_process = engine_of_context(context) == IN_PROCESS
    content = unchecked_record(
        RecordDict(),
        {
            "arrays": record_of(map(lazy_array_of if in_process else array_of, arrays)),
            "metrics": figures(metrics, examples),
            "about": unchecked_record(ConfigRecord(), {"site": client.site}),
        },
    )
    if (charged := client.round.charged) is not None:
        content[RECORD] = ConfigRecord({**charged.to_config()})
    return content


def _evaluate(message: Message, context: Context, asked: str = "config") -> RecordDict:
    client = client_of(message, context)
    loss, examples, metrics = client.evaluate(
        _arrays(message),
        dict(config_of(message, asked)),
    )
    return RecordDict(
        {
            "metrics": figures({**metrics, "loss": loss}, examples),
            "about": ConfigRecord({"site": client.site}),
        }
    )


def _evaluate_and_train(message: Message, context: Context) -> Message:
    """Answer an instruction that also requests an evaluation: if one fails, its reason is sent with the other."""
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
    """Refuse to report more counts than the run allows."""
    if not run.config.tells_counts:
        raise FederationError(
            f"site '{site}' reports no counts by class, and none of held-out examples, in a private run with "
            "privacy.counts=one: set privacy.counts=public if they are, or choose another weighting"
        )


def _roll_call(message: Message, context: Context) -> RecordDict:
    division = division_of(context)
    run = division.run
    use_threads(run.config.compute.client_cores)
    site = site_of(run, context)
    with deadline_check(_time_to_read(context).check):
        train, holdout = site_samples(division, drawn_name(run, context), context)
    asked, own = config_of(message), "data" in context.node_config
    account = account_of(run, "", site, context)
    if account is not None and LEDGER_TIPS in asked:
        account.check(_read(partial(tip_of_site, site=site), str(asked[LEDGER_TIPS]), LEDGER_TIPS))
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
                    "engine": engine_of_context(context),
                    **({} if own else {DATA: data_here(division, context).checksum}),
                }
            ),
            "sizes": MetricRecord(sizes),
        }
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run a phase of the method's client, after an evaluation of the received weights if requested."""
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


# ---- secret sum ----------------------------------------------------------------------------------


def _secret(exchange: str) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> RecordDict:
        from client_app.secret import answer

        return answer(message, context, exchange, _record_of(message))

    return partial(reply, handle=handle)


for _exchange in ("keys", "shares", "opening"):
    app.query(f"secret_{_exchange}")(_secret(_exchange))


# ---- reasons -------------------------------------------------------------------------------------
# The reason that a server gets when a site refuses or fails: a sentence that names no path on the site's machine.

#: an absolute path, also behind a quote, a bracket or an equals sign; none is the /abs/folder of our own hints
_PLACE = re.compile(r"(?<![\w/.<>])(?:~|\.{1,2})?/(?!abs/)[^\s/]")


@lru_cache(maxsize=256)
def _log_once(record: str, text: str) -> None:
    """Log what many simulated sites of a run may meet alike."""
    logger.error("%s", text)


def reason_for_server(
    error: Exception, *, owner: bool, log: Callable[[str], None] = logger.error
) -> str:
    """Return the reason that the server gets for ``error``, and log what it does not get.

    An error of Nectar's own says so itself, unless its sentence names a place of the site's. Of any other, the
    traceback stays in the log under an incident number, and the server gets the number: an exception's text may quote
    private data.

    Parameters
    ----------
    owner : bool
        Whether the machine is another one's than the server's user's; in a simulation nothing is withheld.
    log : callable
        Writes a text into this process's log.
    """
    if isinstance(error, NectarError):
        log(str(error))
        shown = error.reported if owner and error.reported else str(error)
        if not owner or not _PLACE.search(shown):
            return reason(shown)
    trace = "".join(traceback.format_exception(error))
    # A hash would confirm a guess of the text; in a simulation it gives the same error the same number.
    incident = (uuid.uuid4().hex if owner else hashlib.sha256(trace.encode()).hexdigest())[:8]
    if isinstance(error, NectarError):
        logger.error("the server is given the number %s of this error", incident)
        return f"this site cannot do what the run asks, and its log says why ({type(error).__name__}, log {incident})"
    log(f"error {incident}\n{trace.rstrip()}")
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f", {Path(one.filename).name}:{one.lineno}" for one in frame)
    return f"{EXCEPTION} {type(error).__name__}{place} (log {incident})"


# ---- private files -------------------------------------------------------------------------------
# A site's state is for its owner alone: no other user of the machine can read it.

OPEN = stat.S_IRWXG | stat.S_IRWXO
"""The permissions of all users but the owner."""

#: files that the site keeps in addition to its runs' states
_OWN = (LOG, STORE_FOLDER, ARTIFACTS, LEDGER, HEAD_FILE, KEY, "approvals")


@contextmanager
def for_the_owner_alone(directory: Path | None) -> Iterator[None]:
    """While this lasts, what is written has mode 600 and 700.

    Parameters
    ----------
    directory : Path, optional
        The site's state directory, made where it is not there.

    Raises
    ------
    FederationError
        If others may read it, or it cannot be made.
    """
    before = os.umask(OPEN)
    try:
        if directory is not None:
            _require_closed(directory)
        yield
    finally:
        os.umask(before)


def _require_closed(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        mode = directory.stat().st_mode
    except OSError as error:
        raise FederationError(
            f"the state directory {directory} cannot be made or looked at ({error.strerror}): name another state-dir",
            reported=f"this site's state directory cannot be made or looked at ({error.strerror})",
        ) from None
    if mode & OPEN:
        raise FederationError(
            f"others on this machine may read the state directory {directory} (mode {stat.S_IMODE(mode):o}): close it "
            f"with chmod -R go= {directory}, or name a folder of the site's own as state-dir",
            reported="others on this site's machine may read its state directory: its owner has to restrict it first",
        )
