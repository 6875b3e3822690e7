"""Methods over a real SuperLink: the numbers of this process, also where the server or a site is killed.

What is marked `long` takes minutes: `pytest tests/deployment/test_methods_over_superlink.py -m long`.
"""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from federation import MissingGrid, numbers, run, words_of
from frail import Frail, until
from small import Small

from server_app.checkpoint import Checkpoint
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "A fault at any step",
    "FedGEN, DENSE and FedDM have the numbers of one process; a site killed while it trains a "
    "generator makes the same images",
)

NODES = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
PATIENT = "evaluation.on=server federation.join_deadline=600"
VAE = "model.name=vae model.depth=1 model.embedding=6 fedvae.epochs=1 feddpms.smallest=1 feddpms.copies=4"


def learned_in(output: Path) -> Record:
    (directory,) = output.iterdir()
    return Record(directory)


def ended(federation: Frail, submitted: subprocess.Popen[bytes], code: int) -> None:
    until(lambda: submitted.poll() is not None, "the end of the run")
    assert submitted.wait() == code, federation.log("run")


# ---- nobody is killed -----------------------------------------------------------------------------------

#: FedDPMS shares in round 2 and helps in round 3
PAPERS_DPMS = f"{VAE} fedvae.preliminary_rounds=1 feddpms.mechanism=paper"

#: methods whose server makes data of what sites send
SERVER_SIDE = {
    "fedgen": "fedgen.epochs=2 fedgen.generator_steps=5",
    "dense": (
        "dense.epochs=2 dense.distil=every dense.server_iterations=2 dense.generator_steps=2 "
        "dense.generator_batch=8"
    ),
    "feddm": "feddm.global_models=mlp,convnet feddm.global_epochs=3",
    "fedaf": "fedaf.iterations=3 fedaf.local_epochs=1",
}

#: methods whose server distils answers to public images
LOGITS = {
    "feddf": "feddf.epochs=2 image_training.epochs=3",
    "fedmd": "fedmd.epochs=2 image_training.epochs=3 distil.images=noise",
}

#: images by another method, and the first weights that SCAFFOLD begins with
DISTILLED = (
    "fedssyn.source=distilled fedssyn.start_from_images=on fedssyn.inner=scaffold wire.images=uint8"
)


#: sums, a network that they teach, and sums of what it sees
REFIT = (
    "ridge.width=33 ridge.student=convnet ridge.refit=on model.depth=1 model.width=4 image_training.steps=20 "
    "image_training.ball=0"
)

#: what travels as pictures, and as updates whose rounding a site remembers
WIRE = {
    "feddm": "wire.images=jpeg:60 feddm.side=half",
    "fedavg": "wire.weights=int8 wire.error_feedback=on",
}


@pytest.mark.parametrize(
    ("rounds", "methods"),
    [
        (2, {"scaffold": "scaffold.option=I"}),
        (2, {"server": "", "local": "data.validation_at=sites"}),
        pytest.param(2, WIRE, marks=pytest.mark.long),
        pytest.param(3, {"local": "", "fedmix": "fedmix.mean_of=5"}, marks=pytest.mark.long),
        pytest.param(3, {"feddpms": PAPERS_DPMS}, marks=pytest.mark.long),
        pytest.param(2, SERVER_SIDE, marks=pytest.mark.long),
        pytest.param(3, LOGITS, marks=pytest.mark.long),
        pytest.param(2, {"ridge": REFIT}, marks=pytest.mark.long),
        pytest.param(3, {"fedssyn": DISTILLED}, marks=pytest.mark.long),
    ],
)
def test_the_numbers_are_those_of_this_process(
    small: Small, tmp_path: Path, rounds: int, methods: dict[str, str]
) -> None:
    """SCAFFOLD's bundles and control variates; the wire's codecs; local's models, FedMix's parcels.

    A server that asks nobody, and a validation split that the sites judge, each by its own model.
    """
    with Deployment(tmp_path, nodes=3) as federation:
        for method, settings in methods.items():
            config = small(method=method, rounds=rounds, set=f"{settings} evaluation.on=server")
            there = tmp_path / f"remote-{method}"
            run_id = federation.submit(config | {"output-dir": str(there)})
            assert federation.wait(run_id) == "finished:completed"
            assert numbers(learned_in(there)) == numbers(run(config)), method


def test_named_nodes_give_the_numbers_of_the_partitions_that_they_hold(
    small: Small, tmp_path: Path
) -> None:
    """Named backwards: draws, hold-outs and the order of sums go by the partition."""
    nodes = [f"partition-id={i} num-partitions=3 site='{name}'" for i, name in enumerate("zya")]
    settings = "masking.rate=2 data.site_holdout=0.2 evaluation.on=both"
    config = small(method="masking", rounds=2, set=settings)
    with Deployment(tmp_path, nodes=nodes) as federation:
        run_id = federation.submit(config | {"output-dir": str(tmp_path / "remote")})
        assert federation.wait(run_id) == "finished:completed"
    there, here = learned_in(tmp_path / "remote"), run(config)
    for judged in ("test", "sites"):
        assert [line[judged] for line in there.metrics()] == [
            line[judged] for line in here.metrics()
        ]


@pytest.mark.long
def test_models_of_the_sites_own_are_judged_where_they_are_to_the_same_figures(
    small: Small, tmp_path: Path
) -> None:
    with Deployment(tmp_path, nodes=3) as federation:
        for method in ("fedper", "ditto", "finetune"):
            config = small(method=method, rounds=2, set=f"{method}.epochs=1 {method}.batch=64")
            there = tmp_path / f"remote-{method}"
            run_id = federation.submit(config | {"output-dir": str(there)})
            assert federation.wait(run_id) == "finished:completed"
            lines = learned_in(there).metrics(), run(config).metrics()
            judged, here = ([line["sites"] for line in each[1:]] for each in lines)
            assert judged == here, method


# ---- the server is killed and resumed -------------------------------------------------------------------

#: a surrogate of another depth at one site, two global models, latents that the next round goes on from
DGM = (
    "model.depth=2 feddgm.depths=partition-1:1 feddgm.global_models=convnet,mlp feddgm.warm=on feddgm.epochs=2 "
    "feddgm.ipc=2 feddgm.iterations=3 feddgm.inner_epochs=3 feddgm.global_epochs=5 feddgm.surrogate_epochs=5"
)

#: decoders are handed over in round 2, means are shared in round 3, and help comes in round 4
DPMS = f"{VAE} fedvae.preliminary_rounds=2"


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "settings", "struck", "rounds"),
    [("feddgm", DGM, [2], 3), ("feddpms", DPMS, [1, 2, 3, 4], 5)],
)
def test_its_server_killed_in_these_rounds_and_resumed_it_is_an_unbroken_run(
    small: Small, tmp_path: Path, method: str, settings: str, struck: list[int], rounds: int
) -> None:
    """The nodes stay."""
    config = small(method=method, rounds=rounds, set=f"{settings} {PATIENT}")
    output = tmp_path / "runs"
    with Frail(tmp_path, NODES) as federation:
        federation.start(*NODES)
        words = words_of({k: v for k, v in config.items() if k != "output-dir"})
        for number in struck:
            submitted = federation.submit_words("run", f"output-dir={output}", *words)
            begun = partial(federation.heard, "partition-0", f"ROUND {number}]")
            until(begun, f"round {number}", while_runs=submitted)
            federation.kill_app("superlink", "flwr-serverapp")
            ended(federation, submitted, 1)
            record = learned_in(output)
            assert len(record.metrics()) == number  # with the evaluation before round 1
            words = [f"resume={record.id}"]
        last = federation.submit_words("run", f"output-dir={output}", *words)
        ended(federation, last, 0)
    assert numbers(learned_in(output)) == numbers(run(config))


# ---- a site is killed as its generator trains -----------------------------------------------------------

#: SCAFFOLD around some hundred images a site; a generator takes long enough to be met at its work
FEDSSYN = (
    "fedssyn.inner=scaffold fedssyn.width=8 fedssyn.multipliers=1,2 fedssyn.blocks=1 fedssyn.attention=1 "
    "fedssyn.batch=16 fedssyn.epochs=40 fedssyn.diffusion_steps=50 fedssyn.sampling_steps=5 "
    f"fedssyn.sampler=second-order {PATIENT} federation.min_replies=3"
)


def _learned(record: Record) -> list[Any]:
    return [(line["test"], line["floats_up"]) for line in record.metrics()]


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_a_site_of_fedssyn_killed_in_round_1_makes_the_same_images(
    small: Small, tmp_path: Path, killed: bool
) -> None:
    """Site 1 is killed once in round 1 and asked again in round 2; or nobody is."""
    config = small(method="fedssyn", rounds=4, set=FEDSSYN)
    output, shelf = tmp_path / "there", tmp_path / "state" / "nectar-made"
    words = words_of({k: v for k, v in config.items() if k != "output-dir"})
    with Frail(tmp_path, NODES) as federation:
        federation.start(*NODES)
        submitted = federation.submit_words("run", f"output-dir={output}", *words)
        if killed:
            begun = partial(federation.heard, "partition-1", "ROUND 1]")
            until(begun, "round 1", while_runs=submitted)
            until(lambda: any(shelf.glob("*.lock")), "the training", while_runs=submitted)
            federation.kill_app("partition-1", "flwr-clientapp")
        ended(federation, submitted, 0)
    there = learned_in(output)
    away = {("partition-1", 1)} if killed else set()
    here = run(config, MissingGrid, absent=away, lost=set())
    assert list(there.metrics()[1]["rejected"]) == [site for site, _ in away]
    assert killed or numbers(there) == numbers(here)
    assert _learned(there) == _learned(here)
    one, other = (Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (there, here))
    assert one.equal(other)
