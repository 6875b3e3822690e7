"""Settings of local training by SGD, for the methods whose devices train a model."""

from common.settings.base import Settings, setting


class SGDSettings(Settings):
    """Local SGD; batch, epochs and lr lie in the search of the FedDM paper's baselines."""

    epochs: int = setting(
        10, "passes over the site's images a round", symbol="E", ge=1, amount="epochs"
    )
    lr: float = setting(0.01, "learning rate", symbol="eta", gt=0)
    batch: int = setting(256, "images a step", symbol="B", ge=1)
    momentum: float = setting(0.0, "momentum", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay", ge=0)
