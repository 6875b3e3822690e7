"""Bundles, memory at the sites and several models over a real SuperLink: the numbers of this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment import Deployment
from federation import numbers, run
from small import Small

from server_app.record import Record

#: shares in round 2, helps in round 3
DPMS = (
    "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1 fedvae.epochs=1 "
    "feddpms.smallest=1 feddpms.copies=4 feddpms.mechanism=paper"
)


@pytest.mark.parametrize(
    "methods",
    [
        {"scaffold": "scaffold.option=I"},
        pytest.param({"local": "", "fedmix": "fedmix.mean_of=5"}, marks=pytest.mark.long),
        pytest.param({"feddpms": DPMS}, marks=pytest.mark.long),
    ],
)
def test_the_numbers_are_those_of_this_process(
    small: Small, tmp_path: Path, methods: dict[str, str]
) -> None:
    """SCAFFOLD's bundles and control variates; with `-m long` local's models, FedMix's parcels, and FedDPMS, too."""
    with Deployment(tmp_path, nodes=3) as federation:
        for method, settings in methods.items():
            config = small(method=method, rounds=3, set=f"{settings} evaluation.on=server")
            there = tmp_path / f"remote-{method}"
            run_id = federation.submit(config | {"output-dir": str(there)})
            assert federation.wait(run_id) == "finished:completed"
            (directory,) = there.iterdir()
            assert numbers(Record(directory)) == numbers(run(config)), method
