"""Every method, and each way it runs that matters, as a run of a second: one row each; a new method is one row.

The properties of `test_methods` hold of all of them, and the fuzzers spoil them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from common.methods import METHODS, section

SITES = 4

#: digits that are divided evenly, and a network that learns them in no time
FEDERATION = (
    "model.width=4 model.depth=1 partition.kind=iid partition.min_size=1 data.images=150 "
    "federation.min_replies=2"
)
TRAINED = "{0}.epochs=1 {0}.batch=32"
VAE = f"model.name=vae model.embedding=4 {TRAINED} {{0}}.preliminary_rounds=1"
DPMS = f"{VAE} feddpms.smallest=1 feddpms.copies=4"
IMAGES = "{0}.ipc=2 image_training.epochs=2"
MATCHED = f"{IMAGES} {{0}}.iterations=2 {{0}}.real_batch=16"
WARM = f"{MATCHED} feddm.start=noise feddm.warm=on"
PUBLIC = f"{TRAINED} distil.count=10 image_training.epochs=2"
GENERATOR = (
    f"{TRAINED} fedgen.hidden=8 fedgen.noise=4 fedgen.generator_steps=3 fedgen.generator_batch=16"
)
FEDSYNTH = f"{TRAINED} model.width=8 fedsynth.rate=2 fedsynth.iterations=2 fedsynth.real_batch=32"
AVERAGED = "fedavg.epochs=1 fedavg.batch=32"
DIFFUSION = (
    "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=1 "
    "fedssyn.batch=32 fedssyn.diffusion_steps=4 fedssyn.sampling_steps=2 fedssyn.sampler=second-order"
)
INNER_SCAFFOLD = "fedssyn.inner=scaffold scaffold.epochs=1"
DISTILLED = (
    "fedssyn.source=distilled fedssyn.start_from_images=true feddm.ipc=2 feddm.iterations=2 "
    f"feddm.real_batch=16 image_training.epochs=2 {AVERAGED}"
)
FEDDGM = (
    "feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=1 feddgm.inner_epochs=1 feddgm.global_epochs=1 "
    "feddgm.surrogate_epochs=1"
)
DENSE = "dense.server_iterations=2 dense.generator_steps=2 dense.generator_batch=32"
NOISE = "privacy.noise_multiplier=1 privacy.counts=public"
JUDGED, BY_SITES = (f"evaluation.on={on} data.site_holdout=0.2" for on in ("both", "sites"))
SOME = "federation.participation=0.67"
FLOWER = "flwr.serverapp.strategy:"


class Case(NamedTuple):
    """A row: its name, a method, and settings in which ``{0}`` stands for the method's section."""

    name: str
    method: str
    words: str
    rounds: int = 4

    @property
    def plain(self) -> bool:
        """Whether it is the first row of its method."""
        return " " not in self.name

    @property
    def once(self) -> bool:
        """Whether the method has a single round."""
        return self.rounds == 1


CASES = (
    Case("feddm", "feddm", MATCHED),
    Case("feddm keeps", "feddm", f"{MATCHED} feddm.keep=2 wire.images=float16 feddm.image_weighting=counts"),
    Case("feddm bytes", "feddm", f"{MATCHED} wire.images=uint8"),
    Case("feddm jpeg", "feddm", f"{MATCHED} wire.images=jpeg:60"),
    Case("feddm noise", "feddm", f"{MATCHED} {NOISE} feddm.mechanism=gradient"),
    Case("fedaf", "fedaf", f"{MATCHED} fedaf.local_epochs=1"),
    Case("real", "real", IMAGES),
    Case("fedavg", "fedavg", TRAINED),
    Case("fedavg batch-norm", "fedavg", f"{TRAINED} model.norm=batch {JUDGED}"),
    Case("fedavg own-statistics", "fedavg", f"{TRAINED} model.norm=batch model.statistics=local {BY_SITES}"),
    Case("fedavg momentum", "fedavg", f"{TRAINED} wire.weights=float16 fedavg.server_momentum=0.9"),
    Case("fedavg int8", "fedavg", f"{TRAINED} wire.weights=int8 wire.error_feedback=on model.norm=batch"),
    Case("fedadam", "fedavg", f"{TRAINED} fedavg.server_optimizer=adam fedavg.server_lr=0.01"),
    Case("fedavg noise", "fedavg", f"{TRAINED} {NOISE}"),
    Case("fedprox", "fedprox", TRAINED),
    Case("fednova", "fednova", TRAINED),
    Case("scaffold", "scaffold", TRAINED),
    Case("scaffold I", "scaffold", f"{TRAINED} scaffold.option=I"),
    Case("scaffold counts", "scaffold", f"{TRAINED} wire.weights=float16 scaffold.weighting=counts"),
    Case("scaffold int8", "scaffold", f"{TRAINED} wire.weights=int8"),
    Case("feddyn", "feddyn", TRAINED),
    Case("fedpvr", "fedpvr", TRAINED),
    Case("moon", "moon", TRAINED),
    Case("fedmix", "fedmix", f"{TRAINED} fedmix.mean_of=5"),
    Case("fedmix float16", "fedmix", f"{TRAINED} fedmix.mean_of=5 wire.images=float16"),
    Case("fedmix jpeg", "fedmix", f"{TRAINED} fedmix.mean_of=5 wire.images=jpeg:60 wire.weights=int8"),
    Case("fedgen", "fedgen", GENERATOR),
    Case("dense", "dense", f"{TRAINED} {DENSE}"),
    Case("feddf", "feddf", PUBLIC),
    Case("fedmd", "fedmd", f"{PUBLIC} fedmd.digest_epochs=1"),
    Case("fedmd float16", "fedmd", f"{PUBLIC} wire.latents=float16 {JUDGED}"),
    Case("fedmd noise", "fedmd", f"{PUBLIC} {NOISE}"),
    Case("fedvae", "fedvae", VAE),
    Case("feddpms", "feddpms", DPMS),
    Case("feddpms mean", "feddpms", f"{DPMS} feddpms.mechanism=overall-mean"),
    Case("fedssyn", "fedssyn", f"{DIFFUSION} {AVERAGED}"),
    Case("fedssyn int8", "fedssyn", f"{DIFFUSION} {AVERAGED} wire.images=jpeg:60 wire.weights=int8"),
    Case("fedssyn scaffold", "fedssyn", f"{DIFFUSION} {INNER_SCAFFOLD} fedssyn.diagnostics=true"),
    Case("fedssyn distilled", "fedssyn", DISTILLED),
    Case("feddgm", "feddgm", FEDDGM),
    Case("local", "local", TRAINED),
    Case("fedsynth", "fedsynth", FEDSYNTH),
    Case("fedsynth steps", "fedsynth", f"{FEDSYNTH} fedsynth.labels=fixed fedsynth.learn_step=true"),
    Case("masking", "masking", TRAINED),
    Case("topk", "topk", f"{TRAINED} topk.values=float16"),
    Case("lowrank", "lowrank", f"{TRAINED} lowrank.rank=2"),
    Case("fedper", "fedper", f"{TRAINED} {BY_SITES}"),
    Case("fedrep", "fedrep", f"{TRAINED} {BY_SITES} fedrep.head_epochs=1"),
    Case("fedbn", "fedbn", f"{TRAINED} {BY_SITES}"),
    Case("ditto", "ditto", f"{TRAINED} {BY_SITES}"),
    Case("finetune", "finetune", f"{TRAINED} {BY_SITES}"),
    Case("FedAdam", f"{FLOWER}FedAdam", AVERAGED),
    Case("FedAvgM", f"{FLOWER}FedAvgM", f"{AVERAGED} strategy.server_momentum=0.9"),
    Case("FedYogi", f"{FLOWER}FedYogi", AVERAGED),
    Case("FedAdagrad", f"{FLOWER}FedAdagrad", AVERAGED),
    Case("FedMedian", f"{FLOWER}FedMedian", AVERAGED),
    Case("FedTrimmedAvg", f"{FLOWER}FedTrimmedAvg", AVERAGED),
    Case("Krum", f"{FLOWER}Krum", AVERAGED),
    Case("feddm warm", "feddm", WARM),
    Case("feddm counts", "feddm", f"{WARM} feddm.keep=0 feddm.image_weighting=counts"),
    Case("feddm models", "feddm", f"{MATCHED} feddm.global_models=mlp,convnet feddm.global_epochs=2"),
    Case("fedaf warm", "fedaf", f"{WARM.format('fedaf')} {SOME}"),
    Case("real redrawn", "real", f"{IMAGES} real.redraw=on"),
    Case("fedavg some", "fedavg", f"{TRAINED} {SOME}"),
    Case("scaffold feedback", "scaffold", f"{TRAINED} wire.weights=int8 wire.error_feedback=on"),
    Case("fedgen some", "fedgen", f"{GENERATOR} {SOME}"),
    Case("dense every", "dense", f"{TRAINED} {DENSE} dense.student_batch=8 dense.padding=1 dense.distil=every"),
    Case("fedmd some", "fedmd", f"{PUBLIC} distil.keep=sites {SOME}"),
    Case("fedssyn some", "fedssyn", f"{DIFFUSION} {INNER_SCAFFOLD} {SOME}"),
    Case("feddgm warm", "feddgm", f"{FEDDGM} feddgm.together=2 feddgm.warm=on model.depth=2 "
         "feddgm.global_models=mlp,convnet feddgm.generator=pixels feddgm.depths=partition-1:1", 3),
    Case("feddpms classes", "feddpms", f"{VAE} feddpms.smallest=1 feddpms.copies=4 feddpms.classes=2", 5),
    Case("fedavg validated", "fedavg", f"{TRAINED} data.validation_at=sites data.validation=0.2 "
         "evaluation.measure=auc"),
    Case("feddm half", "feddm", f"{WARM} feddm.side=half wire.images=jpeg:60"),
    Case("ridge", "ridge", "ridge.width=9", 1),
    Case("ridge refit", "ridge", "ridge.width=65 ridge.refit=true ridge.student=convnet image_training.steps=20 "
         "image_training.batch=64 image_training.ball=0", 2),
    Case("central", "central", TRAINED),
    Case("server", "server", "image_training.epochs=2", 2),
)  # fmt: skip

POOLED = (
    "fedavg",
    "feddm",
    "fedgen",
    "fedssyn",
    "fedsynth",
    "fedper",
    "feddgm",
    "ridge",
    "FedAdam",
)
"""Those that two processes carry out. A worker is handed a node's messages and its memory, whatever the method, so that
methods whose sites keep and send the same kinds of things are one row: weights, images, a generator, shares of a pool,
batches, a model of the site's own, a trajectory, sums, and a strategy of Flower's.
"""

QUICK = ("fedavg", "scaffold", "feddm", "fedssyn", "fedsynth", "topk", "ridge", "fedadam")
"""Those that the README's command runs: a kind of method each."""


def config_of(
    method: str, words: str, sites: int, rounds: int, folder: str, more: str = ""
) -> dict[str, Any]:
    """Return the run config of a case; settings of ``more`` take the place of the case's."""
    own = words.format("fedavg" if ":" in method else section(method))
    text = f"{FEDERATION} federation.sites={sites} {own} {more}".strip()
    return {"output-dir": folder, "method": method, "rounds": rounds, "set": text}


def rows(chosen: Callable[[Case], bool] = lambda case: True) -> list[Any]:
    """Return the chosen cases as a test's parameters, each case's tests for one worker, which has its runs."""
    assert {case.method for case in CASES} >= METHODS.keys(), "a method without a row"
    return [
        pytest.param(
            case,
            id=case.name.replace(" ", "-"),
            marks=[] if case.name in QUICK else [pytest.mark.extended],
        )
        for case in CASES
        if chosen(case)
    ]
