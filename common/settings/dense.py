"""DENSE's settings (Zhang et al., 2022), with the values of the released code's README."""

from typing import Literal

from common.settings.base import Switch, setting
from common.settings.fedavg import FedAvgSettings

_README = "the README of the released code"


class DENSESettings(FedAvgSettings):
    """Sites train as under FedAvg; the server distils their models into one, on images that it makes up."""

    epochs: int = setting(
        400,
        "passes over the site's images a round",
        symbol="E",
        source=_README,
        ge=1,
        amount="epochs",
    )
    momentum: float = setting(0.9, "momentum of SGD; Adam has its own", source=_README, ge=0, lt=1)
    distil: Literal["last", "every"] = setting(
        "last", "the rounds that end with a distillation; the others are FedAvg's"
    )
    student_start: Literal["average", "current"] = setting(
        "average",
        "what is distilled into: the average of the sites' models, or the round's weights (in a run's first round a "
        "new model, as in the released code)",
    )
    server_iterations: int = setting(
        200,
        "generators that are trained, one after the other; 0: no distillation",
        source=_README,
        ge=0,
    )
    noise: int = setting(256, "dimensions of the generator's noise", source=_README, ge=1)
    width: int = setting(
        64, "channels of the generator's last hidden maps", source="the released code", ge=1
    )
    generator_steps: int = setting(30, "steps of each generator", source=_README, ge=1)
    generator_lr: float = setting(
        1e-3, "learning rate of the generator's Adam", source=_README, gt=0
    )
    generator_batch: int = setting(
        256, "images of a generator's step, and of those it leaves", source=_README, ge=2
    )
    matching: float = setting(
        1.0, "weight of the images' being of given classes", symbol="L_CE", source=_README, ge=0
    )
    statistics: float = setting(
        1.0,
        "weight of the images' looking to batch norms like what these saw; without batch norm nothing",
        symbol="lambda_1 L_BN",
        source=_README,
        ge=0,
    )
    adversarial: float = setting(
        1.0,
        "weight of the student's deciding otherwise on the images",
        symbol="lambda_2 L_div",
        source=_README,
        ge=0,
    )
    padding: int = setting(
        4,
        "zeros around an image that is cropped before it is judged",
        source="the released code",
        ge=0,
    )
    flip: Switch = setting(
        True, "whether half of the images are mirrored before", source="the released code"
    )
    student_batch: int = setting(256, "images of a student's step", source=_README, ge=2)
    student_lr: float = setting(0.005, "learning rate of the student's SGD", source=_README, gt=0)
    student_momentum: float = setting(
        0.9, "momentum of the student's SGD", source="the released code", ge=0, lt=1
    )
    temperature: float = setting(
        20.0, "temperature of the student's loss", symbol="T", source=_README, gt=0
    )
