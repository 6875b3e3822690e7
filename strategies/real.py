"""REAL on the server: FedDM's protocol with real images, the strong rival that gives the data away."""

from __future__ import annotations

from strategies.surrogate import SurrogateServer


class Real(SurrogateServer):
    """Receives ipc real images a class from every device; the server's part is FedDM's own."""

    phase = "draw"
