"""Who takes part in a run, and what became of a round's replies: one for a method and for the methods inside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.sites import Site
from strategies.exchange.replies import Outcome
from strategies.exchange.spending import Spending


@dataclass
class Members:
    """The sites of a run.

    Parameters
    ----------
    counted_on : int
        The number of sites that the operator counts on.
    sites : list of Site
        Those that are there, in site order.
    refused : set of int
        The nodes that the roll call refused.
    left_out : mapping of int to str
        Why nodes that were there at the beginning take no part.
    were_there : set of str
        The names of all sites that have been there.
    outcome : Outcome
        What became of the round's replies.
    taken : dict of str to int
        The round of each site's work that was last taken: its memory goes on from there.
    taken_here : set of str
        The sites of which this process took work: what these remember of it they wrote since it began.
    spending : Spending
        What the sites were charged for their privacy, and the heads of their ledgers.
    """

    counted_on: int
    sites: list[Site] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    left_out: Mapping[int, str] = field(default_factory=dict)
    were_there: set[str] = field(default_factory=set)
    outcome: Outcome = field(default_factory=Outcome)
    taken: dict[str, int] = field(default_factory=dict)
    taken_here: set[str] = field(default_factory=set)
    spending: Spending = field(default_factory=Spending)
