"""What a site remembers, within one round: read as of the round that the server last took, written once at its end."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from logging import getLogger

import torch
from torch import Tensor

from client_app.state import DeviceState, Slots, Tensors, names_of, slots_of
from common.errors import FederationError
from common.specs.names import MEMORY_LOST, OTHER_ROUNDS, WENT_BACK

logger = getLogger("flwr")


class Memory:
    """One round's view of a site's state, shared by a method's client and the clients inside it.

    Parameters
    ----------
    taken : int
        The round of the site's work that the server last took; 0 for none.

    Attributes
    ----------
    figures : dict of str to float
        What is said beside the reply: that a version was lost, or that the server went back.
    """

    def __init__(self, state: DeviceState, site: str, taken: int) -> None:
        self._state, self._site, self._taken = state, site, taken
        self._written: dict[str, Tensors] = {}
        self.figures: dict[str, float] = {}

    def read(self, slot: str) -> Tensors | None:
        """Return what stands in ``slot`` as of the round that the server last took; None if nothing.

        Raises
        ------
        FederationError
            If the site remembers other rounds: the record or its memory is of another time.
        """
        return self._remembered.get(slot)

    def write(self, slot: str, tensors: Tensors) -> None:
        """Let ``slot`` hold ``tensors`` from this round on; one that is not written stays as it was."""
        self._written[slot] = tensors

    def apart(self) -> Memory:
        """Return the same round's view, of which nothing is written."""
        return Memory(self._state, self._site, self._taken)

    def replace(self, made: Tensor, shown: Tensor, kept: Tensor) -> None:
        """Let a slot that was given the images ``made`` have ``shown`` in their place, at the positions ``kept``."""
        for slot, tensors in self._written.items():
            own = {name for name, tensor in tensors.items() if _holds(tensor, made)}
            new = {n: shown.reshape(t.shape) if n in own else t for n, t in tensors.items()}
            if own and len(kept) < len(made):
                alike = made.shape[:1]
                new = {n: t.cpu()[kept] if t.shape[:1] == alike else t for n, t in new.items()}
            self._written[slot] = new

    def save(self, server_round: int) -> None:
        """Write version ``server_round`` where there is anything to remember, also where nothing is new.

        The next instruction names this round.
        """
        if self._written or "_remembered" in self.__dict__ or self._state.rounds(self._taken):
            kept = {**self._remembered, **self._written}
            self._state.save(server_round, names_of(kept), self._taken)

    @cached_property
    def _remembered(self) -> Slots:
        rounds = self._state.rounds(self._taken)
        if self._taken in rounds or not self._taken:
            self._say_if_gone_back(rounds)
        if self._taken in rounds:
            return slots_of(self._state.load(self._taken))
        if self._taken and rounds:
            raise FederationError(
                f"{OTHER_ROUNDS}{', '.join(map(str, rounds))}, and the server goes on from its round "
                f"{self._taken}: put back the record or the site's state of the same time, or delete this run's state "
                "at the site to let it begin afresh"
            )
        if self._taken:
            logger.info("%s no longer has what it remembered and begins afresh", self._site)
            self.figures[MEMORY_LOST] = 1.0
        return {}

    def _say_if_gone_back(self, rounds: list[int]) -> None:
        """Note that the server goes on from an earlier round than one that it has named before: an older record."""
        before = 0
        # The version asked for may be whole where a later one is not.
        with suppress(FederationError):
            newest = rounds[-1] if rounds else 0
            before = self._state.base_of(newest) if newest > self._taken else 0
        if before > self._taken:
            logger.info("%s goes back from round %d to %d", self._site, before, self._taken)
            self.figures[WENT_BACK] = float(before)


def _holds(tensor: Tensor, made: Tensor) -> bool:
    return tensor.numel() == made.numel() and torch.equal(
        tensor.detach().cpu().reshape(made.shape), made
    )
