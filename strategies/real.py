"""REAL on the server: FedDM's protocol with real images, the strong rival that gives the data away."""

from __future__ import annotations

from strategies.surrogate import SurrogateServer


class Real(SurrogateServer):
    """Receives ipc real images a class from every device, all of a smaller class; the rest is FedDM's own."""

    phase = "draw"
