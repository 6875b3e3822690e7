"""Settings of the generator that a site trains on its own images: a diffusion model and how it is drawn from."""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from common.settings.base import Noise, Settings, of_clip, of_noise, setting

_WHOLE = r"^[0-9]+(,[0-9]+)*$"
_MAYBE = r"^([0-9]+(,[0-9]+)*)?$"


def _written(value: Any) -> Any:
    """Accept a single number as its text."""
    return str(value) if type(value) is int else value


WholeNumbers = Annotated[str, BeforeValidator(_written)]

_of_code = partial(setting, source="the released code")


class GenerationSettings(Settings):
    """A class-conditional diffusion model (Ho et al., 2020), at Fedssyn's size for 32x32 images, or a beta-VAE."""

    epochs: int = setting(
        500, "passes over its images in which a generator is trained", ge=1, amount="epochs"
    )
    batch: int = setting(256, "images a step of the generator's training", ge=1)
    lr: float = setting(1e-4, "learning rate of the generator's Adam", gt=0)
    average: float = _of_code(
        0.9995,
        "decay of the moving average of the generator's weights, which is what is drawn from",
        ge=0,
        lt=1,
    )
    diffusion_steps: int = setting(
        1000, "steps from an image to noise", symbol="T", ge=1, le=100_000
    )
    schedule: Literal["cosine", "linear"] = _of_code("cosine", "how the noise grows over the steps")
    sampler: Literal["ancestral", "ddim", "second-order"] = setting(
        "ancestral",
        "how an image is drawn: the reverse chain, or one of two deterministic solvers, which need fewer steps",
    )
    sampling_steps: int = _of_code(250, "steps from noise to an image", ge=1)
    width: int = _of_code(64, "channels of the U-Net's first level", ge=2, le=1024)
    multipliers: WholeNumbers = _of_code(
        "1,2,2,2",
        "channels of the U-Net's levels, as multiples of its width; each level halves the sides",
        allowed="whole numbers joined by commas",
        pattern=_WHOLE,
    )
    blocks: int = _of_code(3, "residual blocks of a level on the way down", ge=1, le=16)
    attention: WholeNumbers = setting(
        "0,1,2",
        "levels with attention after every block, 0 the first; the middle always has it",
        allowed="whole numbers joined by commas, or nothing",
        pattern=_MAYBE,
    )
    dropout: float = _of_code(0.1, "share of values that the U-Net drops in training", ge=0, lt=1)

    noise_multiplier: Noise = of_noise(
        "standard deviation of the noise in each step of the diffusion model's training, as a multiple of clip, which "
        "makes it differentially private; 0: it is not",
        symbol="sigma",
    )
    clip: float = of_clip("with noise_multiplier: longest contribution of one image to a step")
    multiplicity: int = setting(
        8,
        "with noise_multiplier: pairs of time step and noise over which an image's gradient is averaged before it is "
        "clipped",
        symbol="K",
        source="Dockhorn et al., up to 32",
        ge=1,
    )

    beta: float = setting(
        4.0,
        "source=vae: weight of the codes' divergence",
        symbol="beta",
        source="Higgins et al.",
        ge=0,
    )
    latent: int = setting(10, "source=vae: numbers of a code", ge=1, le=4096)

    def levels(self) -> tuple[int, ...]:
        """Return ``multipliers`` as numbers."""
        return tuple(int(part) for part in self.multipliers.split(","))

    def attending(self) -> tuple[int, ...]:
        """Return ``attention`` as numbers."""
        return tuple(int(part) for part in self.attention.split(",") if part)
