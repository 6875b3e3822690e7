"""One simulated run from start to end, with its real outcome and nothing left behind."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from nectar.arguments import next_step
from nectar.engines.flower.app import require_app
from nectar.engines.flower.client import CommandOutcome, Job, LaunchError, Screen, follow_lines
from nectar.engines.flower.marked_lines import marked_content
from nectar.engines.processes import Interrupted, Interrupts
from nectar.engines.simulation import superlink as bytecode
from nectar.engines.simulation.superlink import SuperLink
from nectar.engines.simulation.workspace import Workspace, sweep


def simulate(
    job: Job,
    check: Callable[[], object] = lambda: None,
    *,
    verbose: bool = False,
    out: TextIO | None = None,
) -> int:
    """Run `job` on a SuperLink and a Ray of its own.

    Parameters
    ----------
    check
        Called while Flower's programs start, before the job is handed to them; what it raises ends them.
    verbose
        Show every line of the log, Flower's and Ray's idle ones too.
    out
        Where the log goes (default: standard output).

    Returns
    -------
    int
        0 if the run completed, as the app or Flower says, 1 if not, 128 + n if signal n ended it.

    Raises
    ------
    LaunchError
        The run could not be started, or its outcome not be learned.
    """
    screen = Screen(out or sys.stdout, verbose=verbose)
    require_app(job.app)
    workspace: Workspace | None = None
    superlink: SuperLink | None = None
    completed = False
    interrupts = Interrupts()
    try:
        try:
            with interrupts:
                if sweep():
                    screen.say("Removed what an earlier, killed simulation had left behind.")
                workspace = Workspace()
                superlink = SuperLink(workspace.directory, job.resources.cluster)
                with bytecode.shared_bytecode(workspace.directory):
                    check()
                outcome, record = _run(superlink, job, screen)
                completed = outcome.completed
                return _report(outcome, record, screen)
        except Interrupted as interrupted:
            screen.say(f"Interrupted ({interrupted.name}): ending the run's processes.")
            return 128 + interrupted.number
        finally:
            if superlink is not None:
                superlink.settle()
            if workspace is not None:
                workspace.remove(at_once=completed)
            if superlink is not None:
                superlink.reap()
    finally:
        interrupts.restore()


def _run(superlink: SuperLink, job: Job, screen: Screen) -> tuple[CommandOutcome, str]:
    """Return the run's outcome and its record, empty if it came to none."""
    run = superlink.submit(job)
    records: list[str] = []
    completed = False

    def lines() -> Iterator[str]:
        nonlocal completed
        for line in superlink.log_lines():
            yield line
            # What is left is the end of Ray's and Flower's processes, which go with the run's directory.
            if completed := bool(marked_content(line, "completed")):
                return

    def see(line: str) -> None:
        if directory := str(marked_content(line, "record").get("directory", "")):
            if not records:
                superlink.tidy()
            records.append(directory)
        screen.show(line)

    def outcome() -> CommandOutcome:
        return CommandOutcome("finished:completed", "") if completed else superlink.outcome(run)

    return follow_lines(lines, outcome, see), next(iter(records), "")


def _report(outcome: CommandOutcome, record: str, screen: Screen) -> int:
    if outcome.completed:
        if record:
            screen.say(next_step(Path(record)))
        return 0
    screen.say_failed(outcome)
    return 1


# ---- cluster -------------------------------------------------------------------------------------
# A Ray cluster that is there.


def knock(address: str) -> None:
    """See who listens at ``HOST:PORT``, which Ray tries for minutes; LaunchError if nobody; other forms are Ray's."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise no_cluster(address, error) from None


def no_cluster(address: str, error: Exception) -> LaunchError:
    """Return the sentence that there is no cluster."""
    reason = str(error).strip().partition("\n")[0]
    return LaunchError(
        f"No Ray cluster answers at {address} ({reason}): start one with `ray start --head`, and give HOST:PORT of its "
        "head."
    )
