"""The settings of FedMD (Li and Wang, 2019) and DS-FL (Itahara et al., 2021)."""

from typing import ClassVar, Literal

from common.settings.base import Disclosure, setting
from common.settings.fedavg import FedAvgSettings


class FedMDSettings(FedAvgSettings):
    """Sites send logits on public images; each learns from everybody's, and so does the server's model.

    With ``distil.aggregation=entropy`` it is DS-FL. No weights leave a site, which keeps a model of its own.
    """

    distils: ClassVar[bool] = True
    trains_alone: ClassVar[bool] = True

    digest_epochs: int = setting(
        5,
        "passes over the public images by which a site learns everybody's answer, ahead of its own images",
        ge=0,
        amount="epochs",
    )
    mechanism: Literal["logits", "training"] = setting(
        "logits",
        "what has noise under privacy.noise_multiplier: the logits, all of a round no longer than privacy.clip "
        "together; or the steps of the training, by DP-SGD",
    )

    @property
    def trains_on_images(self) -> bool:
        """The server's model does, on public ones."""
        return True

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return the one release of a round's logits, where these have the noise."""
        return (1.0, 1) if self.mechanism == "logits" else super().private_steps(examples, held)

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("logits on public images", labels=True)
