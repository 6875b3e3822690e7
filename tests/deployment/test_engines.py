"""One command, the same numbers: in this process, on Ray, and over a real SuperLink with SuperNodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deployment import Deployment, Secured
from federation import numbers, run, same_end, words_of
from places import HELPERS
from small import Small

from nectar.cli import main as nectar
from server_app.record import Record

SUPERLINK, RAY = "superlink", "ray"
PUBLIC = "image_training.epochs=3"


class Case(NamedTuple):
    """A run, and the engines that carry it out by hand, as ``pytest -m long`` does."""

    words: str
    rounds: int = 2
    engines: tuple[str, ...] = (SUPERLINK,)


CASES = {
    "feddm": Case("", engines=(RAY,)),  # over a SuperLink: test_deployment_tls.py
    "scaffold": Case("scaffold.option=I"),
    "server": Case(""),
    "local": Case("data.validation_at=sites"),
    "fedavg with noise": Case(
        "privacy.noise_multiplier=1 privacy.counts=public evaluation.on=server"
    ),
    "fedavg remembers what int8 cut": Case("wire.weights=int8 wire.error_feedback=on"),
    "feddm as pictures": Case("wire.images=jpeg:60 feddm.side=half"),
    "feddm two models": Case("feddm.global_models=mlp,convnet feddm.global_epochs=3"),
    "fedmix": Case("fedmix.mean_of=5", 3),
    "feddpms shares and helps": Case(
        "model.name=vae model.depth=1 model.embedding=6 fedvae.epochs=1 feddpms.smallest=1 feddpms.copies=4 "
        "fedvae.preliminary_rounds=1 feddpms.mechanism=paper",
        3,
    ),
    "fedgen": Case("fedgen.epochs=2 fedgen.generator_steps=5"),
    "dense": Case(
        "dense.epochs=2 dense.distil=every dense.server_iterations=2 dense.generator_steps=2 "
        "dense.generator_batch=8"
    ),
    "fedaf": Case("fedaf.iterations=3 fedaf.local_epochs=1"),
    "feddf": Case(f"feddf.epochs=2 {PUBLIC}", 3),
    "fedmd": Case(f"fedmd.epochs=2 {PUBLIC} distil.images=noise", 3),
    "ridge refit": Case(
        "ridge.width=33 ridge.student=convnet ridge.refit=on model.depth=1 model.width=4 image_training.steps=20 "
        "image_training.epochs=0 image_training.ball=0"
    ),
    "fedssyn distilled": Case(
        "fedssyn.source=distilled fedssyn.start_from_images=on fedssyn.inner=scaffold wire.images=uint8",
        3,
        engines=(SUPERLINK, RAY),
    ),
    "fedper": Case("fedper.epochs=1 fedper.batch=64"),
    "ditto": Case("ditto.epochs=1 ditto.batch=64"),
    "finetune": Case("finetune.epochs=1 finetune.batch=64"),
    "fedsynth": Case(
        "model.name=mlp model.width=200 fedsynth.iterations=4 fedsynth.steps=3 fedsynth.rate=30 "
        "fedsynth.learn_step=on fedsynth.real_batch=64 fedsynth.epochs=1 fedsynth.batch=64"
    ),
}


def rows(engine: str) -> list[str]:
    return [name for name, case in CASES.items() if engine in case.engines]


@pytest.fixture
def config_of(small: Small) -> Callable[[str], dict[str, Any]]:
    """Return a case's run config."""

    def make(name: str) -> dict[str, Any]:
        case, method = CASES[name], name.partition(" ")[0]
        return small(method=method, rounds=case.rounds, set=case.words)

    return make


def the_record(directory: Path) -> Record:
    (found,) = (each for each in directory.iterdir() if not each.name.startswith("."))
    return Record(found)


def over(federation: Deployment, config: dict[str, Any], output: Path) -> Record:
    """Submit a run to a federation, and return its record once it has completed."""
    run_id = federation.submit(config | {"output-dir": str(output)})
    assert federation.wait(run_id) == "finished:completed", federation.server_log(run_id)
    return the_record(output)


@pytest.mark.promise(
    "A fault at any step",
    "FedGEN, DENSE and FedDM have the numbers of one process; a site killed while it trains a "
    "generator makes the same images",
)
@pytest.mark.long
@pytest.mark.parametrize("name", rows(SUPERLINK))
def test_a_superlink_gives_the_numbers_of_this_process(
    lab: Secured, config_of: Callable[[str], dict[str, Any]], tmp_path: Path, name: str
) -> None:
    """Figures, bytes each way by site, floats, devices: all but the seconds."""
    there, here = over(lab, config_of(name), tmp_path / "remote"), run(config_of(name))
    assert numbers(there) == numbers(here)
    assert same_end(there, here)


@pytest.mark.long
@pytest.mark.parametrize("name", rows(RAY))
def test_ray_gives_the_numbers_of_this_process(
    config_of: Callable[[str], dict[str, Any]], tmp_path: Path, name: str
) -> None:
    config = config_of(name)
    assert nectar(["simulate", *words_of(config | {"output-dir": str(tmp_path / "ray")})]) == 0
    assert numbers(the_record(tmp_path / "ray")) == numbers(run(config))


def figures(record: Record) -> list[object]:
    """Return what each round came to, but for bytes: masks' exchanges add to those, and a context's are others."""
    return [{k: v for k, v in line.items() if k != "bytes"} for line in numbers(record)]


SECRET = (
    "federation.sites=3 federation.secret=on federation.secret_colluders=0 evaluation.on=server"
)


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["simulate", pytest.param("run", marks=pytest.mark.long)])
def test_a_secret_sum_on_ray_and_in_a_pool_is_that_of_this_process(
    small: Small, tmp_path: Path, engine: str
) -> None:
    config = small(method="fedavg", rounds=2, set=f"{SECRET} compute.workers=2")
    assert nectar([engine, *words_of(config | {"output-dir": str(tmp_path / "there")})]) == 0
    assert figures(the_record(tmp_path / "there")) == figures(run(config))
    assert not (tmp_path / "there" / ".secret-sum").exists()


@pytest.mark.long
def test_on_ray_a_record_names_its_command_and_holds_no_token(
    small: Small, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's processes have their tokens among their words."""
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    words = words_of(small(set="compute.workers=2") | {"output-dir": str(tmp_path / "ray")})
    assert nectar(["simulate", *words]) == 0
    record, message = the_record(tmp_path / "ray"), capfd.readouterr().out
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["command"] == ["nectar", "simulate", *words]
    secret = re.compile(rb"[0-9a-f]{65,}|--token|PRIVATE KEY")
    files = [path for path in record.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if secret.search(path.read_bytes())]
    assert secret.search(message.encode()) is None
    assert "nectar-record" not in message  # marked lines are for programs
    assert f"nectar report {record.directory}" in message
