"""What the server does under damped."""

from strategies.fedavg import FedAvg


class Server(FedAvg):
    """FedAvg's: all sites get the weights, what comes back is averaged. Override ``update`` to combine otherwise."""
