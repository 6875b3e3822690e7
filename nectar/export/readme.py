"""The README of an exported folder."""

from __future__ import annotations

from typing import Any

from common.config.resolved import Config
from common.settings.base import Settings
from common.sites import ALL_SITES
from nectar.export.formats import PT2
from nectar.report.facts import facts_of, unknown
from nectar.report.text import plural, share

_PICTURE = """\
`model.safetensors` holds the weights of `{name}`, which `nectar score` reads by model.json. The files below need
nothing of Nectar; they take pixel values from 0 to 1, any number of images. Of a picture, with Pillow and NumPy:

```python
import numpy as np
from PIL import Image, ImageOps

picture = ImageOps.exif_transpose(Image.open("picture.png")).convert("{mode}")
picture = ImageOps.fit(picture, ({side}, {side}), Image.Resampling.BICUBIC)
pixels = np.asarray(picture, np.float32).reshape(1, {side}, {side}, {channels}).transpose(0, 3, 1, 2) / 255
```
"""

_USES = {
    PT2: """\
`model.pt2` is a program of `torch.export`, which needs torch and no code of the network:

```python
import torch

logits = torch.export.load("model.pt2").module()(torch.from_numpy(pixels))
print(logits.softmax(1))  # classes in the order of model.json
```
""",
    "onnx": """\
`model.onnx` is for ONNX runtimes, here onnxruntime:

```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
[logits] = session.run(["logits"], {"pixels": pixels})
```
""",
}

_SYNTHETIC = """\
## What {who}

`synthetic/` holds {count} images of round {round}{of}. {nature}

- `synthetic/synthetic.npz`: `images` float32 [n, C, H, W] as the model takes them (normalised), `labels` int64 [n],
  `sites` [n]. This is what the server had, to the bit: `numpy.load("synthetic/synthetic.npz")`.
- `synthetic/images/<class>/<site>-<index>.png`: the same to look at and for any other trainer, in pixel space,
  rounded to bytes, and clipped to what a picture can show or, for a method whose images lie elsewhere, each stretched
  to its own extremes. `torchvision.datasets.ImageFolder` sorts folders by name
  and numbers them in that order; the number in front of each name makes that order the labels' own.{missing}
"""


def readme(
    about: dict[str, Any], config: Config, sent: dict[str, Any] | None, lacks: str = ""
) -> str:
    """Return the README's text.

    Parameters
    ----------
    about : dict
        model.json's content.
    sent : dict, optional
        ``count``, ``sites``, ``round`` and ``missing`` (classes without an image) of the synthetic set.
    lacks : str
        Why there is no model.pt2, if there is none.
    """
    run = about["run"]
    channels, side, _ = about["input"]["shape"]
    mode = "L" if channels == 1 else "RGB"
    lines = [
        f"# {run['dataset']}, {run['method']}, round {run['round']}",
        "",
        f"The global model of the Nectar run `{run['id']}` after round {run['round']} of {run['rounds']}. "
        f"{_progress(run)}{_accuracy(about)}",
        "",
        _PICTURE.format(name=about["model"]["name"], mode=mode, side=side, channels=channels),
        *(_USES[name] for name in about["formats"] if name in _USES),
    ]
    if lacks:
        lines += [f"There is no model.pt2: {lacks}.", ""]
    if sent:
        lines.append(_SYNTHETIC.format(**(sent | _phrases(config, sent))))
    return "\n".join(lines)


def _progress(run: dict[str, Any]) -> str:
    if run["outcome"] == "completed":
        return ""
    return f"THE RUN IS NOT COMPLETE ({run['outcome'] or 'no outcome is recorded'}). "


def _accuracy(about: dict[str, Any]) -> str:
    figures = about["figures"]
    said = [
        f"{name} accuracy {share(part['accuracy'])}, loss {share(part['loss'])}"
        for name, part in figures.items()
        if part
    ]
    return "; ".join(said).capitalize() + "." if said else "The server did not evaluate it."


def who_made_images(config: Config) -> str:
    """Return whose the images are, in words that follow "what" or "images that"."""
    disclosed = config.settings.disclosure()
    facts = None
    if disclosed is not None:
        facts = facts_of(config.method, disclosed, config.settings.model_dump().get)
    return "the server made" if facts is not None and facts.carries else "the sites sent"


def _sender(config: Config) -> tuple[str, Settings]:
    """Return the method whose sites send images, the run's own or one inside it; the run's own where none does."""
    for name, settings in config.methods.items():
        sent = settings.disclosure()
        if sent is not None and sent.images:
            return config.method if name == config.section else name, settings
    return config.method, config.settings


def nature_of_images(config: Config) -> str:
    """Return in a sentence or two what the images are with regard to the sites' real ones."""
    method, settings = _sender(config)
    disclosed = settings.disclosure()
    if disclosed is None:
        return unknown(method)
    if disclosed.images and disclosed.unchanged:
        return "THESE ARE REAL IMAGES of the sites' own data, sent as they are: treat them as that data."
    if not disclosed.images or not disclosed.began_as:
        facts = facts_of(method, disclosed, settings.model_dump().get)
        return unknown(method) if facts is None else " ".join(facts.sent)
    if disclosed.began_as == "real examples":
        start = getattr(settings, "start", "real")
        what = "REAL IMAGES" if start == "real" else "MEANS OF A FEW REAL IMAGES"
        return (
            f"THEY BEGAN AS {what} of the sites' own data (start={start}) and may look like them: do not treat them "
            "as private."
        )
    if disclosed.began_as == "class means":
        return (
            "They began as means of each site's classes with noise upon them, and were distilled; none is a real "
            "image. They are functions of private data all the same, and nothing about them is differentially private."
        )
    return (
        "They began as noise and were distilled; none is a real image. They are functions of private data all the "
        "same, and nothing about them is differentially private."
    )


def _phrases(config: Config, sent: dict[str, Any]) -> dict[str, str]:
    missing, sites = sent["missing"], sent["sites"]
    said = (
        f" There is none of {', '.join(missing)}; for these ImageFolder needs `allow_empty=True`."
    )
    return {
        "who": who_made_images(config),
        "of": "" if ALL_SITES in sites else f", by {plural(len(sites), 'site')}",
        "nature": nature_of_images(config),
        "missing": said if missing else "",
    }
