"""Settings of a frozen public network, on whose embeddings methods learn instead of on images."""

from __future__ import annotations

from typing import Literal

from common.models.registry import names
from common.settings.section import Section, setting


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
