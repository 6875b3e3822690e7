"""What an audit of images came to: as JSON in a record, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nectar.audit.images.examining import Examined
from nectar.audit.images.figures import RATE

SCHEMA = 1

LIMITS = (
    "What these attacks do not find may be found by others: a share near that of false alarms proves nothing. "
    "Un-mixing has every member among its candidates."
)


def outcome(
    whole: Examined, sites: Mapping[str, Examined], about: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """Return the outcome as JSON can state it.

    Parameters
    ----------
    about : mapping
        What was audited: controls by what they are.
    notes : sequence of str
        What could not be had.
    """
    return {
        "schema": SCHEMA,
        "rate": RATE,
        **about,
        "notes": [*notes, LIMITS],
        "all": _stated(whole),
        "sites": {site: _stated(each) for site, each in sites.items()},
    }


def _stated(one: Examined) -> dict[str, Any]:
    return {**asdict(one), "strongest": one.strongest}


def plus_minus(found: Mapping[str, Any], name: str, digits: int = 1) -> str:
    """Return a share in percent with its standard error."""
    return f"{100 * found[name]:.{digits}f} ± {100 * found[f'{name}_error']:.{digits}f} %"


def attack_rows(examined: Mapping[str, Any]) -> list[list[str]]:
    """Return a row an attack: its name, area, members found, false alarms counted; the strongest is marked."""
    return [
        [
            f"{name} *" if name == examined["strongest"] else name,
            f"{found['area']:.3f} ± {found['area_error']:.3f}",
            plus_minus(found, "found"),
            plus_minus(found, "false_alarms"),
        ]
        for name, found in examined["attacks"].items()
    ]


ATTACK_HEAD = ("attack", "area", f"members found at {100 * RATE:g} %", "false alarms counted")
SITE_HEAD = (
    "site",
    "members",
    "images",
    "own",
    "other",
    "nearer to own",
    "by chance",
    "strongest",
    "found",
    "area",
)


def site_rows(content: Mapping[str, Any]) -> list[list[str]]:
    """Return a row a site: members, images, median distances, share nearer to its own, and the strongest attack."""
    rows = []
    for site, each in content["sites"].items():
        found = each["attacks"].get(each["strongest"])
        near = each.get("nearest") or {}
        rows.append(
            [
                site,
                f"{found['members']:,}" if found else _NOTHING,
                f"{each['images']:,}",
                *(_number(near.get(key)) for key in ("own_median", "other_median")),
                *(_share(near.get(key)) for key in ("nearer_to_own", "nearer_by_chance")),
                each["strongest"] or _NOTHING,
                plus_minus(found, "found") if found else _NOTHING,
                f"{found['area']:.3f}" if found else _NOTHING,
            ]
        )
    return rows


def as_text(content: Mapping[str, Any]) -> str:
    """Return the outcome for a terminal."""
    parts = [sentence(content)]
    if content["all"]["attacks"]:
        parts.append(aligned([ATTACK_HEAD, *attack_rows(content["all"])]))
    if content["sites"]:
        parts.append(aligned([SITE_HEAD, *site_rows(content)]))
        parts.append(DISTANCES)
    return "\n\n".join([*parts, *content["notes"]])


DISTANCES = (
    "own, other: median distance of a sent image from the nearest image of its class that the site trains on, and from "
    "the nearest control (root mean square of values 0 to 1). By chance: the share nearer to own if these were drawn "
    "alike."
)


def sentence(content: Mapping[str, Any]) -> str:
    """Say who the members and controls are, and what the strongest attack finds."""
    controls = ", ".join(f"{count:,} {what}" for what, count in content["controls"].items())
    whole = content["all"]
    found = whole["attacks"].get(whole["strongest"])
    members = f"{found['members']:,} members" if found else "No members"
    said = [f"{members} (all images that sites train on); controls: {controls}."]
    after = f" after round {content['round']}" if "round" in content else ""
    said.append(f"{whole['images']:,} images that were sent were read{after}.")
    if found:
        said.append(
            f"The strongest attack, {whole['strongest']}, finds {plus_minus(found, 'found')} of the members where "
            f"{plus_minus(found, 'false_alarms')} of the controls are taken for some; area "
            f"{found['area']:.3f} ± {found['area_error']:.3f}."
        )
    return " ".join(said)


_NOTHING = "–"


def _number(value: Any) -> str:
    return _NOTHING if value is None else f"{value:.3f}"


def _share(value: Any) -> str:
    return _NOTHING if value is None else f"{100 * value:.0f} %"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns, the first to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    )
