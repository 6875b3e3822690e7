"""FedDM on the server: send w_r, receive distilled sets, train on their union (Algorithm 1, server part)."""

from __future__ import annotations

from strategies.surrogate import SurrogateServer


class FedDM(SurrogateServer):
    """The mathematics is the device's; what the server does with the sets is SurrogateServer's."""

    phase = "synthesize"
