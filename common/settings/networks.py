"""Settings of networks: the one that is learned, and a frozen public one on whose embeddings it may be."""

from __future__ import annotations

from typing import Any, Literal

from common.models.registry import MODELS, names
from common.settings.section import Section, Switch, setting


class ModelSettings(Section):
    """The classifier that is learned."""

    name: str = setting(
        "convnet",
        f"the architecture; {names('text')} for text, {names('table')} for tables, {names('series')} for series, "
        f"{names('images')} for images",
        allowed=f"one of {', '.join(MODELS)}, or your own as package.module:callable",
    )
    depth: int = setting(
        3,
        "convnet, conv1d: blocks of convolution, norm, ReLU and pooling; lstm, vit: "
        "layers; encoder, vae: convolutions of each of two blocks",
        ge=1,
        le=8,
    )
    width: int = setting(
        128,
        "convnet, conv1d: channels of every convolution; mlp, lstm: hidden units; vit: size of a token; encoder, vae: "
        "channels of the first block",
        ge=1,
        le=4096,
    )
    norm: Literal["instance", "group", "batch", "none"] = setting(
        "instance", "convnet, resnet18, resnet34: the normalisation in every block"
    )
    embedding: int = setting(
        0,
        "lstm: size of a token's vector; encoder, vae: of the latent code; 0: as width",
        ge=0,
        le=4096,
    )
    projection: int = setting(
        0,
        "size of a two-layer projection head between embedding and classifier, MOON's 256; 0: none",
        ge=0,
        le=4096,
    )
    tied: Switch = setting(
        True, "lstm: the output layer uses the embedding's own matrix; needs embedding = width"
    )
    start: str = setting(
        "",
        "weights to start from, which the server alone reads: a file there, or torchvision's by name; empty: drawn by "
        "the run's seed",
        allowed="an absolute path to a .safetensors, .pth or .pt file, or torchvision:NAME, such as "
        "torchvision:IMAGENET1K_V1",
    )
    sha256: str = setting(
        "",
        "SHA-256 that the file of start must have; empty: any",
        pattern=r"^([0-9a-f]{64})?$",
        allowed="64 hexadecimal digits",
    )
    train: Literal["all", "head"] = setting(
        "all",
        "what the sites train: the whole model, or its last layer alone, on what the others make in evaluation",
    )
    statistics: Literal["averaged", "local"] = setting(
        "averaged",
        "batch norm's running means and variances: averaged as weights are, or each site's own, which never leave it",
    )

    def architecture(self) -> dict[str, Any]:
        """Return what makes the network: all settings but those of the values in it."""
        return self.model_dump(exclude={"start", "sha256", "train", "statistics"})


class FeaturesSettings(Section):
    """A frozen public network: every machine puts its images through it once, and methods learn from what comes out."""

    name: str = setting(
        "",
        f"the network's architecture: {names('images')}; empty: none, methods learn from the images",
        allowed="a model's name, or package.module:callable, such as torchvision.models:mobilenet_v3_small",
    )
    start: str = setting(
        "",
        "its weights, which every site and the server read on their own machine: a file there, or torchvision's by "
        "name, which are fetched into data-dir/weights where they are missing",
        allowed="an absolute path to a .safetensors, .pth or .pt file, or torchvision:NAME, such as "
        "torchvision:IMAGENET1K_V1",
    )
    sha256: str = setting(
        "",
        "SHA-256 that the file of start must have everywhere; a file by path needs it",
        pattern=r"^([0-9a-f]{64})?$",
        allowed="64 hexadecimal digits",
    )
    depth: int = setting(3, "as model.depth", ge=1, le=8)
    width: int = setting(128, "as model.width", ge=1, le=4096)
    norm: Literal["instance", "group", "batch", "none"] = setting("instance", "as model.norm")
