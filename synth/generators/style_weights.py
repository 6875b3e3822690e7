"""Trained weights of a style-based generator as text, and those for handwritten digits that come with the app."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files

import torch
from torch import Tensor

from synth.generators.style import Form, StyleNetwork

# It stands in the code, and not beside the weights, so that a run's fingerprint tells two priors apart.
_DIGITS_SHA256 = "ffa78611d359a20f9765c9595791e16a57a32584dd25d47a10991b26253429bc"


def encoded(network: StyleNetwork, about: str) -> bytes:
    """Return a network as JSON: its form, and its weights in float16, little-endian, one after another, in base64.

    Parameters
    ----------
    about : str
        Where the weights come from, for whoever opens the file.

    Raises
    ------
    ValueError
        A weight is not finite in float16.
    """
    flat = torch.cat([tensor.flatten() for tensor in network.state_dict().values()])
    half = flat.to("cpu", torch.float16)
    if not bool(half.isfinite().all()):
        raise ValueError("a generator with a weight that is not finite in float16 cannot be kept")
    weights = base64.b64encode(bytes(half.view(torch.uint8).tolist())).decode()
    record = {"about": about, "form": asdict(network.form), "weights": weights}
    return (json.dumps(record, indent=1) + "\n").encode()


def decoded(content: bytes, sha256: str) -> StyleNetwork:
    """Return the network of `encoded` bytes, on the CPU, in float32, asking for no gradients.

    Parameters
    ----------
    content : bytes
        What `encoded` returned.
    sha256 : str
        Of the content, in hexadecimal.

    Raises
    ------
    ValueError
        It is another content, or not a network's, or has a weight that is not finite.
    """
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"the generator's weights are damaged or others: their SHA-256 does not begin with {sha256[:16]}"
        )
    try:
        record = json.loads(content)
        form = Form(**{**record["form"], "shape": tuple(record["form"]["shape"])})
        raw = base64.b64decode(record["weights"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"these are not a generator's weights: {error!r}") from error
    with torch.device("meta"):  # a form takes memory only once there are weights for it
        network = StyleNetwork(form)
    network.load_state_dict(_tensors(network.state_dict(), raw), assign=True)
    return network.requires_grad_(False)


def _tensors(shapes: Mapping[str, Tensor], raw: bytes) -> dict[str, Tensor]:
    """Return ``raw`` cut into tensors with the names and shapes of ``shapes``, in that order."""
    sizes = [math.prod(tensor.shape) for tensor in shapes.values()]
    if len(raw) != 2 * sum(sizes):
        raise ValueError(
            f"the generator's weights are {len(raw)} bytes, and {2 * sum(sizes)} by its form"
        )
    flat = torch.frombuffer(bytearray(raw), dtype=torch.float16).float()
    if not bool(flat.isfinite().all()):
        raise ValueError("a weight of the generator is not finite")
    return {
        name: values.reshape(tensor.shape)
        for (name, tensor), values in zip(shapes.items(), torch.split(flat, sizes), strict=True)
    }


def digits_prior() -> StyleNetwork:
    """Return the generator of 8x8 digits that comes with the app, by default for scikit-learn's digits.

    It has learned from MNIST at 8x8, other people's digits than those: `examples/train_prior.py` trains it.

    Raises
    ------
    ValueError
        The app's file is damaged.
    """
    content = files("synth.generators").joinpath("digits_prior.json").read_bytes()
    return decoded(content, _DIGITS_SHA256)
