"""DENSE's settings (Zhang et al., 2022), with the values of the released code's README."""

from functools import partial
from typing import Literal

from common.settings.base import Switch, setting
from common.settings.fedavg import FedAvgSettings

_of_code = partial(setting, source="the released code")
_of_readme = partial(setting, source="the README of the released code")


class DENSESettings(FedAvgSettings):
    """Sites train as under FedAvg; the server distils their ensemble into one model, on images that it generates."""

    comment = "The server generated images that these models assign to each class; they show what the weights reveal."

    epochs: int = _of_readme(
        400, "passes over the site's images a round", symbol="E", ge=1, amount="epochs"
    )
    momentum: float = _of_readme(0.9, "momentum of SGD; Adam has its own", ge=0, lt=1)
    distil: Literal["last", "every"] = setting(
        "last", "the rounds that end with a distillation; the others are FedAvg's"
    )
    student_start: Literal["average", "current"] = setting(
        "average",
        "what is distilled into: the average of the sites' models, or the round's weights (in a run's first round a "
        "new model, as in the released code)",
    )
    server_iterations: int = _of_readme(
        200, "generators that are trained, one after the other; 0: no distillation", ge=0
    )
    noise: int = _of_readme(256, "dimensions of the generator's noise", ge=1)
    width: int = _of_code(64, "channels of the generator's last hidden maps", ge=1)
    generator_steps: int = _of_readme(30, "steps of each generator", ge=1)
    generator_lr: float = _of_readme(1e-3, "learning rate of the generator's Adam", gt=0)
    generator_batch: int = _of_readme(
        256, "images of a generator's step, and of those it leaves", ge=2
    )
    matching: float = _of_readme(
        1.0, "weight of the images' being of given classes", symbol="L_CE", ge=0
    )
    statistics: float = _of_readme(
        1.0,
        "weight of the images' looking to batch norms like what these saw; without batch norm nothing",
        symbol="lambda_1 L_BN",
        ge=0,
    )
    adversarial: float = _of_readme(
        1.0,
        "weight of the student's deciding otherwise on the images",
        symbol="lambda_2 L_div",
        ge=0,
    )
    padding: int = _of_code(4, "zeros around an image that is cropped before it is judged", ge=0)
    flip: Switch = _of_code(True, "whether half of the images are mirrored before")
    student_batch: int = _of_readme(256, "images of a student's step", ge=2)
    student_lr: float = _of_readme(0.005, "learning rate of the student's SGD", gt=0)
    student_momentum: float = _of_code(0.9, "momentum of the student's SGD", ge=0, lt=1)
    temperature: float = _of_readme(20.0, "temperature of the student's loss", symbol="T", gt=0)
