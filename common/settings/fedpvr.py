"""FedPVR's settings (Li et al., 2023)."""

from collections.abc import Sequence
from typing import ClassVar

from common.settings.base import setting
from common.settings.scaffold import ScaffoldSettings


class FedPVRSettings(ScaffoldSettings):
    """SCAFFOLD on the last layers, FedAvg on the others."""

    trains_alone: ClassVar[bool] = True

    layers: str = setting(
        "head",
        "layers with control variates, by the beginnings of their parameters' names",
        allowed="names and beginnings of names separated by commas, such as head or layer4,fc; none for no layer",
        pattern=r"^[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*$",
    )

    def corrected(self, names: Sequence[str]) -> list[str]:
        """Return the parameters of the chosen layers; ValueError if a model has no such layer."""
        if self.layers == "none":
            return []
        chosen = self.layers.split(",")
        for layer in chosen:
            if not any(_lies_in(name, layer) for name in names):
                there = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
                raise ValueError(f"fedpvr.layers names '{layer}', the model has {there}")
        return [name for name in names if any(_lies_in(name, layer) for layer in chosen)]


def _lies_in(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")
