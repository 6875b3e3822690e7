"""One simulated run from start to end, with its real outcome and nothing left behind."""

import sys
import time
from pathlib import Path
from typing import TextIO

from server_app.launch import workspace
from server_app.launch.interrupt import Interrupted, Interrupts
from server_app.launch.job import Job, require_app
from server_app.launch.log import NoiseFilter, plain
from server_app.launch.superlink import Outcome, SuperLink

_RETRY_SECONDS = 2.0


def simulate(job: Job, *, verbose: bool = False, out: TextIO | None = None) -> int:
    """Run `job` on a SuperLink and a Ray of its own.

    Parameters
    ----------
    job
        App, run configuration, resources.
    verbose
        Show every line of the log, Flower's and Ray's idle ones too.
    out
        Where the log goes (default: standard output).

    Returns
    -------
    int
        0 if Flower reports the run as completed, 1 if not, 128 + n if signal n ended it.

    Raises
    ------
    LaunchError
        The run could not be started, or its outcome not be learned.
    """
    out = out or sys.stdout
    require_app(job.app)
    directory: Path | None = None
    superlink: SuperLink | None = None
    interrupts = Interrupts()
    try:
        try:
            with interrupts:
                if workspace.sweep():
                    _say(out, "Removed what an earlier, killed simulation had left behind.")
                directory = workspace.create()
                superlink = SuperLink(directory)
                outcome = _run(superlink, job, verbose, out)
                return _report(outcome, out)
        except Interrupted as interrupted:
            _say(out, f"Interrupted ({interrupted.name}): ending the run's processes.")
            return 128 + interrupted.number
        finally:
            if directory is not None:
                workspace.remove(directory)
            if superlink is not None:
                superlink.reap()
    finally:
        interrupts.restore()


def _run(superlink: SuperLink, job: Job, verbose: bool, out: TextIO) -> Outcome:
    superlink.start()
    run = superlink.submit(job)
    shown = 0
    while True:
        noise = NoiseFilter()
        for number, line in enumerate(superlink.log_lines(run)):
            # After a broken connection the log comes again from its beginning.
            if (verbose or noise.shows(line)) and number >= shown:
                out.write(line if out.isatty() else plain(line))
                out.flush()
            shown = max(shown, number + 1)
        outcome = superlink.outcome(run)
        if outcome.finished:
            return outcome
        time.sleep(_RETRY_SECONDS)


def _report(outcome: Outcome, out: TextIO) -> int:
    if outcome.completed:
        return 0
    reason = outcome.details if outcome.details not in ("", "N/A") else "Flower gives no reason"
    _say(out, f"The run did not complete ({outcome.status.partition(':')[2]}): {reason}")
    return 1


def _say(out: TextIO, sentence: str) -> None:
    out.write(f"{sentence}\n")
    out.flush()
