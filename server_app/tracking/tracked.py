"""The tracker that a run's settings choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from common.config.resolved import Config
from common.config.text import Scalar
from common.errors import ConfigError, FederationError
from common.settings.sections import TrackSettings
from common.sites import Site
from server_app.record import Record
from server_app.tracking.figures import settings_of
from server_app.tracking.telling import Apart, Line, OnRound, Pictures, Telling, Tracker


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of a run when it begins, or goes on.

    Parameters
    ----------
    record : Path
        The record; its name is the run's id.
    before : tuple of dict
        The lines of the rounds that are done, for a tracker that does not know them.
    next_round : int
        The round whose line comes next.
    """

    record: Path
    name: str
    group: str
    settings: Mapping[str, Scalar]
    before: tuple[Line, ...] = ()
    next_round: int = 0

    @property
    def output_dir(self) -> Path:
        """Where the records lie."""
        return self.record.parent


def require_tracker(track: TrackSettings) -> None:
    """Refuse a tracker that is not installed at the run's server; ConfigError with the line that installs it."""
    if track.by == "none":
        return
    found = find_spec(track.by)
    if found is None or found.origin is None:
        raise ConfigError(
            f"track={track.by} needs {track.by}, which is not installed here: `pip install 'nectar-fl[{track.by}]'` "
            f"(in a clone `.uv/bin/uv pip install -e '.[{track.by}]'`), or leave track out."
        )


def refuse_own_pictures(track: TrackSettings, sites: Sequence[Site]) -> None:
    """Refuse to show a tracker images of sites with data of their own; FederationError naming some of them."""
    if track.images and (own := [site.name for site in sites if not site.partitions]):
        raise FederationError(
            f"track.images=on would copy images of sites with data of their own ({', '.join(own[:5])}) to a tracker: "
            "leave it out; the figures are tracked without it"
        )


def telling_of(
    config: Config,
    record: Record,
    sites: Callable[[], Sequence[Site]],
    on_round: OnRound | None = None,
) -> Telling:
    """Return what tells of a run's rounds.

    Parameters
    ----------
    record : Record
        Its record, with the lines of the rounds that are done.
    sites : callable
        Returns the sites that take part at the moment.
    """
    track = config.track
    if track.by == "none":
        return Telling(on_round)
    before = tuple(record.metrics())
    run = TrackedRun(
        record.directory,
        track.name or record.id,
        track.group or "nectar",
        settings_of(config),
        before,
        before[-1]["round"] + 1 if before else 0,
    )

    def pictures(server_round: int) -> Pictures:
        if not track.images or not all(site.partitions for site in sites()):
            return {}  # a site with data of its own has joined since
        folder = record.directory / "samples" / f"round-{server_round:03d}"
        return {path.stem: path for path in sorted(folder.glob("*.png"))}

    return Telling(on_round, Apart(f"track={track.by}", partial(_begin, track.by, run)), pictures)


def _begin(name: str, run: TrackedRun) -> Tracker:
    """Begin to track a run, or go on: it is told of the rounds before if it does not know them."""
    if name == "tensorboard":
        from server_app.tracking.tensorboard import TensorBoard as Chosen
    else:
        from server_app.tracking.mlflow import MLflow as Chosen  # type: ignore[assignment]
    tracker = Chosen(run)
    if tracker.fresh:
        for line in run.before:
            tracker.round(line, {})
    return tracker
