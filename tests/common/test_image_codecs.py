"""The table of image codecs: what is one file and one row is a codec everywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from places import ROOT
from small import SMALL

from common.errors import PayloadError
from common.settings.fedavg import MaskingSettings, TopKSettings
from common.settings.section import Section
from common.settings.sections import WireSettings
from common.wire.codec import FLOAT_CODECS
from common.wire.compression import COMPRESSIONS
from common.wire.image_codecs import (
    IMAGE_CODECS,
    ImageCoder,
    coder_of,
    is_picture,
    most_bytes,
    names,
    pattern,
    permitted,
)
from common.wire.weights import CODECS

#: the one file: eight bytes a value, the sign turned
DOUBLE = '''
"""Images in float64, negated."""
import math
import numpy as np
import torch
from common.wire.codec import require_finite, require_shape
from common.wire.image_codecs import ImageCoder


class Double(ImageCoder):
    @staticmethod
    def max_bytes(shape):
        return 8 * math.prod(shape)

    def encode(self, images):
        require_finite(self.name, images)
        return {"sign": -1}, (-images.detach().cpu().double()).numpy()

    def decode(self, array, shape, header):
        require_shape(self.name, array, shape, "float64")
        values = header["sign"] * torch.from_numpy(np.array(array.values()))
        require_finite(self.name, values)
        return values.float()
'''

#: the one row, and what is sent by it: a set, and a round in which a site's reply comes in another codec
USED = """
import json, sys
from common.wire.image_codecs import IMAGE_CODECS, ImageCodec
IMAGE_CODECS["double"] = ImageCodec("double", "double_codec:Double", meaning="eight bytes a value")

import numpy as np, torch
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.specs.images import images_spec, sent_images
from common.wire.synthetic_images import SyntheticImages
from federation import TamperedGrid, run
from tampering import with_arrays

set_, out = sys.argv[1:]

def config(codec):
    return {"method": "feddm", "rounds": 1, "output-dir": out, "set": f"{set_} wire.images={codec}"}

def refused(codec):
    try:
        load(config(codec))
    except ConfigError as error:
        return str(error)

def floats(arrays):
    head = json.loads(arrays[0].tobytes()) | {"codec": "float32"}
    return [np.frombuffer(json.dumps(head).encode(), np.uint8), -arrays[1].astype(np.float32), *arrays[2:]]

def accuracies(record):
    return [line["test"] for line in record.metrics()]

division = Division(load(config("double")))
spec = images_spec(division.run, 2)
images, labels = torch.randn(20, 1, 8, 8), torch.arange(10).repeat(2)
arrays = sent_images(division.run, images, labels).encode("zlib")
back = SyntheticImages.decode(arrays, spec)
tampered = run(config("double"), TamperedGrid, tampers={1: with_arrays(floats)}).metrics()[1]
print(json.dumps({
    "dtype": str(SyntheticImages(images, labels, "double").encode()[1].dtype),
    "back": [back.codec, torch.equal(back.images, images)],
    "limit": spec.max_bytes,
    "equal": accuracies(run(config("double"))) == accuracies(run(config("float32"))),
    "accepted": list(tampered["accepted"]),
    "rejected": tampered["rejected"],
    "refused": refused("triple"),
    "help": type(load(config("double")).wire).model_fields["images"].description,
}))
"""


@pytest.mark.extended
def test_a_file_and_a_row_are_a_codec_that_settings_payloads_and_rounds_know(
    tmp_path: Path,
) -> None:
    """Its payloads are twice as large as float32's: what bounds a reply has read its row too."""
    (tmp_path / "double_codec.py").write_text(DOUBLE, encoding="utf-8")
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests" / "helpers")))
    done = subprocess.run(
        [sys.executable, "-c", USED, SMALL, str(tmp_path / "runs")],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["dtype"] == "float64"
    assert found["back"] == ["double", True]
    assert found["limit"] > 2 * 10 * 64 * 8
    assert found["equal"]
    assert found["accepted"] == ["partition-0", "partition-2"]
    assert "wire.images=double was expected" in found["rejected"]["partition-1"]
    assert "jpeg:QUALITY with QUALITY from 1 to 95, or double" in found["refused"]
    assert "double: eight bytes a value" in found["help"]


@pytest.mark.parametrize("codec", [*IMAGE_CODECS, "jpeg:60"])
def test_each_row_has_a_coder(codec: str) -> None:
    if codec == "jpeg":
        with pytest.raises(PayloadError, match="cannot travel in jpeg, but in float32"):
            coder_of(codec)
        return
    coder = coder_of(codec)
    assert isinstance(coder, ImageCoder)
    assert coder.max_bytes((2, 3, 8, 8)) > 0
    assert re.fullmatch(pattern(), codec)
    assert is_picture(codec) == codec.startswith("jpeg")


def test_the_table_in_words() -> None:
    assert permitted() == "float32, float16, uint8, or jpeg:QUALITY with QUALITY from 1 to 95"
    assert names(lambda row: not row.pictures) == "float32, float16 or uint8"
    assert names(lambda row: row.pictures) == "jpeg:QUALITY"


def test_the_most_bytes_are_of_those_codecs_that_can_hold_the_images() -> None:
    """By hand: 4 bytes a value; a picture of two channels there is not."""
    assert most_bytes((5, 2, 8, 8), lambda _: True) == 4 * 5 * 2 * 64
    assert most_bytes((5, 2, 8, 8), lambda _: False) == 0
    with pytest.raises(PayloadError, match="one or three channels"):
        most_bytes((5, 2, 8, 8), lambda row: row.pictures)


def test_settings_offer_what_the_other_tables_have() -> None:
    def offered(section: type[Section], name: str) -> set[str]:
        return set(get_args(section.model_fields[name].annotation))

    assert offered(WireSettings, "compression") == {"none", *COMPRESSIONS}
    assert offered(WireSettings, "weights") == {*CODECS, "int8"}
    assert offered(WireSettings, "latents") == set(FLOAT_CODECS)
    assert offered(TopKSettings, "values") == offered(MaskingSettings, "values")
    assert offered(TopKSettings, "values") == set(FLOAT_CODECS)
