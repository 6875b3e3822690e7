"""FedPVR on the server (Li et al., 2023): SCAFFOLD's, with control variates of the last layers only."""

from __future__ import annotations

from strategies.scaffold import Scaffold


class FedPVR(Scaffold):
    """Averages models, and the control variates of the layers that are corrected."""
