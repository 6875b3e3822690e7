"""Every kind of charge that a site's ledger gets: a method, its settings, and the one that makes it long."""

from __future__ import annotations

ONE = "federation.sites=1 data.images=200 evaluation.on=none"
SGD = "privacy.noise_multiplier=1 privacy.noise=system privacy.examples=200"
PUBLIC = "privacy.noise_multiplier=1 privacy.noise=system privacy.counts=public"
VAE = "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1"
FEDDM = f"{PUBLIC} feddm.start=noise feddm.mechanism="
DIFFUSION = (
    "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.batch=32 "
    "fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order fedssyn.size=12"
)

#: every kind of charge: method, settings, and the one that makes it longer than any round
CHARGED = {
    "fedavg": ("fedavg", SGD, "fedavg.epochs"),
    "head": ("fedavg", f"{SGD} model.norm=batch model.train=head", "fedavg.epochs"),
    "augmented": ("fedavg", f"{SGD} fedavg.augment=flip_crop", "fedavg.epochs"),
    "scaffold": ("scaffold", SGD, "scaffold.epochs"),
    "moon": ("moon", SGD, "moon.epochs"),
    "fedgen": ("fedgen", PUBLIC, "fedgen.epochs"),
    "fedvae": ("fedvae", f"{VAE} {SGD}", "fedvae.epochs"),
    "feddpms": ("feddpms", f"{VAE} {PUBLIC}", "feddpms.epochs"),
    "feature": ("feddm", f"{FEDDM}feature", "feddm.iterations"),
    "gradient": ("feddm", f"{FEDDM}gradient", "feddm.iterations"),
    "half": ("feddm", f"{FEDDM}feature feddm.side=half", "feddm.iterations"),
    "counts": (
        "feddm",
        f"{FEDDM}feature privacy.counts=one feddm.counts_noise=10",
        "feddm.iterations",
    ),
    "loss": (
        "fedsynth",
        f"{PUBLIC} fedsynth.rate=2 fedsynth.objective=loss fedsynth.fidelity=off",
        "fedsynth.iterations",
    ),
    "update": (
        "fedsynth",
        f"{PUBLIC} fedsynth.rate=2 fedsynth.objective=update fedsynth.epochs=1",
        "fedsynth.iterations",
    ),
    "inner": ("fedssyn", f"{SGD} fedssyn.source=none fedssyn.inner=fedavg", "fedavg.epochs"),
}
GENERATOR = ("fedssyn", f"{DIFFUSION} fedssyn.noise_multiplier=1 {PUBLIC}", "fedssyn.epochs")

SUMS = "federation.sites=4 data.images=200 evaluation.on=none privacy.noise=system privacy.noise_multiplier=2"
SECRET = f"{SUMS} federation.secret=on federation.secret_colluders=1"

#: those of which no setting makes one long: sums, logits, and what several sites add up; with how many sites
AT_ONCE = {
    "logits": (
        "fedmd",
        f"{ONE} {PUBLIC} fedmd.mechanism=logits distil.count=10 distil.images=noise",
        1,
    ),
    "sums": ("ridge", f"{ONE} {PUBLIC} ridge.width=9", 1),
    "secret sums": ("ridge", f"{SECRET} ridge.width=9", 4),
    "updates": ("fedavg", f"{SECRET} federation.secret_clip=1 privacy.examples=50", 4),
    "proximal": ("fedprox", f"{SECRET} federation.secret_clip=1 privacy.examples=50", 4),
}
