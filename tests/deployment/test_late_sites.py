"""Three sites with folders of their own at a real SuperLink: one joins a record's sums late, another leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployment import Deployment
from frail import until
from PIL import Image
from sklearn.datasets import load_digits

from client_app.app import app as client_app
from common.config.loading import load
from nectar.engines.local_grid import LocalGrid
from nectar.recorded_run import RecordedRun
from nectar.records.outputs import with_recorded
from server_app.app import serve

#: the digits that each site has
HELD = {"north": range(7), "south": range(3, 10), "east": range(10)}
CLASSES = ",".join(f"d{digit}" for digit in range(10))


def draw(directory: Path) -> dict[str, Path]:
    """Write scikit-learn's digits to folders: of each 13 or more to a site that has it, 10 to the server's test."""
    images, labels = load_digits(return_X_y=True)
    for digit in range(10):
        own = (images[labels == digit].reshape(-1, 8, 8) * 15.9).astype(np.uint8)
        places = [directory / "sites" / site for site, digits in HELD.items() if digit in digits]
        cuts = [own[:60], *np.array_split(own[60:], len(places))]
        for place, part in zip([directory / "central" / "test", *places], cuts, strict=True):
            folder = place / f"d{digit}"
            folder.mkdir(parents=True)
            for number, image in enumerate(part):
                Image.fromarray(image).save(folder / f"{number:03d}.png")
    return {site: directory / "sites" / site for site in HELD}


def head(run: RecordedRun) -> torch.Tensor:
    return run.checkpoint().model("")["head.weight"]


@pytest.mark.extended
def test_one_joins_late_and_one_is_forgotten_as_if_it_had_never_been_there(tmp_path: Path) -> None:
    folders = draw(tmp_path)
    nodes = [f"site='{site}' data='{folder}'" for site, folder in folders.items()]
    settings = (
        f"images.classes={CLASSES} images.size=8 images.channels=1 images.folder={tmp_path}/central "
        "data.validation=0 federation.sites=2 federation.join_deadline=120 ridge.plain=on ridge.keep=sites "
        "ridge.width=65"
    )
    config = {"method": "ridge", "dataset": "images", "set": settings}

    def submitted(federation: Deployment, name: str, run_config: dict[str, Any]) -> RecordedRun:
        output = tmp_path / name
        run_id = federation.submit(run_config | {"output-dir": str(output)})
        assert federation.wait(run_id) == "finished:completed"
        (directory,) = output.iterdir()
        return RecordedRun.open(directory)

    def again(federation: Deployment, name: str, run: RecordedRun, word: str) -> RecordedRun:
        return submitted(
            federation, name, with_recorded({"resume": str(run.directory), "set": word})
        )

    with Deployment(tmp_path, nodes[:2]) as federation:
        first = submitted(federation, "first", config)
        federation.join(nodes[2])
        until(lambda: "SuperNode ID" in (tmp_path / "node-2.log").read_text(), "the late site")
        late = again(federation, "late", first, "federation.newcomers=any")
        left = again(federation, "left", late, "ridge.forget=north")

    assert [[*run.rounds[-1]["bytes"]["down"]] for run in (first, late, left)] == [
        ["north", "south"],
        ["east"],
        [],
    ]
    assert late.rounds[-1]["notes"]["in_total"] == ["north", "south", "east"]
    assert list(left.partition["sites"]) == ["south", "east"]
    never = []
    for names in (("north", "south", "east"), ("south", "east")):
        own = [{"site": site, "data": str(folders[site])} for site in names]
        here = config | {"output-dir": str(tmp_path / "-".join(names))}
        here["set"] = settings.replace("sites=2", f"sites={len(names)}")
        never.append(
            RecordedRun.open(serve(LocalGrid(client_app, own, here), load(here)).directory)
        )
    everybody, without = never
    torch.testing.assert_close(head(late), head(everybody))  # summed in another order
    assert torch.equal(head(left), head(without))
    accuracies = [run.accuracy for run in (first, late, left, everybody, without)]
    assert accuracies[1:3] == accuracies[3:]
    assert min(accuracies) > 0.8
