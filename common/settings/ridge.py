"""Settings of ridge regression from sums of features, after Fed3R (Fani et al., ICML 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from common.settings.base import Disclosure, Settings, Switch, setting

if TYPE_CHECKING:
    from common.settings.sections import ModelSettings, PrivacySettings

_OURS = "Nectar; Fed3R's features are pre-trained"


TEACHER, STUDENT, JOINT = "ridge", "student", "ridgenetwork"
"""Architectures where ``ridge.student`` is set: what sites' sums are of, what they teach, and what has both."""


class RidgeSettings(Settings):
    """Sites send sums of frozen features, once; the server adds them and solves ridge regression.

    The model is linear in untrained features, and does not depend on the division. By itself this is no
    privacy: sums give members away.
    """

    needed: ClassVar = {"rounds": 1, "federation.participation": 1.0, "model.name": "ridge"}

    features: Literal["random", "deep", "own"] = setting(
        "random",
        "what a picture becomes; random: answers of random filters, drawn by the run's seed; deep: these, and for "
        "three of sixteen axes the embedding of an untrained ConvNet; own: what the network of features.* makes of "
        "it. The columns of a table and the values of a series are features as they are",
        source=_OURS,
    )
    width: int = setting(
        257,
        "numbers that represent an example: axes in its features, and a constant; a site sends about half its square",
        symbol="d",
        source=_OURS,
        ge=2,
        le=8193,
    )
    axes: Literal["drawn", "server", "random"] = setting(
        "drawn",
        "where the axes come from: the principal ones of images drawn by code, or of the server's labelled examples, "
        "which then go down to every site; or random directions",
        source=_OURS,
    )
    sums: Literal["both", "class"] = setting(
        "both",
        "what a site sends: sums of squares and sums of classes; or those of classes alone, where the covariance is "
        "that of the drawn images or, with ridge.server=on, of the server's examples",
    )
    lam: str = setting(
        "gcv",
        "the penalty on the weights' squares; gcv: by generalised cross-validation, from the sums alone; under noise "
        "as long as the noise is",
        symbol="lambda",
        allowed="gcv, or a number of 0 or more",
    )
    server: Switch = setting(
        False,
        "the server's labelled examples (data.validation) join the sites', and then judge nothing",
    )
    alone: Switch = setting(
        False,
        "no site takes part: the solution of the server's labelled examples (data.validation), which is as far as they "
        "go without a federation",
        later=True,
    )
    student: str = setting(
        "",
        "a network that the server then trains on its labelled examples (data.validation, which judge nothing then), "
        "as image_training says and taught by the solution: it is the run's model, and no site takes part again",
        source="Nectar, after Hinton et al. (2015)",
        allowed="a name that model.name takes, or nothing",
        later=True,
    )
    refit: Switch = setting(
        False,
        "with ridge.student=convnet: sums of the axes and of the network's embedding, which goes down; their solution "
        "is the run's model. The network is taught by the solution of the server's own examples (rounds=1), or of a "
        "first round's sums (rounds=2)",
        source="Nectar, after Fed3R+FT",
        later=True,
    )
    form: Literal["int8", "integers"] = setting(
        "int8",
        "the encoding of sums: in a byte a number with a scale a site; or as sums of rows that are rounded to integer "
        "numbers, exact, and the same for any division and order",
    )
    levels: int = setting(
        16, "form=integers: steps in an axis' deviation, to which a row is rounded", ge=1, le=4096
    )
    plain: Switch = setting(
        False,
        "private examples (any set but the public ones): let sums leave without noise; classes of fewer than 10 "
        "examples at a site are left out",
    )
    keep: Literal["none", "sites"] = setting(
        "none",
        "what the server keeps besides the total: nothing, or each site's sums, which give its members away",
    )
    forget: str = setting(
        "",
        "with resume= of a record with ridge.keep=sites: sites, by commas, whose sums a new record is to be without",
    )

    @field_validator("lam")
    @classmethod
    def _lambda(cls, value: str) -> str:
        if value != "gcv" and not 0 <= float(value) < float("inf"):
            raise ValueError("a penalty is gcv or a number of 0 or more")
        return value

    @property
    def trains_on_images(self) -> bool:
        """Whether the server trains a network."""
        return bool(self.student)

    @property
    def trains_on_validation(self) -> bool:
        """Whether the server's examples are among those it learns from, or give the axes."""
        return self.server or self.alone or self.axes == "server" or bool(self.student)

    def shaped(self, model: ModelSettings) -> ModelSettings:
        """Return the model with the configured number of axes, or the network that it teaches."""
        own: dict[str, Any] = {"name": self.student} if self.student else self._teacher
        if self.student and self.refit:
            own = {"name": JOINT, "embedding": self.width}
        return model.model_copy(update=own)

    @property
    def _teacher(self) -> dict[str, Any]:
        embedding = (self.width - 1) * 3 // 16 if self.features == "deep" else 0
        return {"width": self.width, "embedding": embedding}

    def models(self, model: ModelSettings) -> Mapping[str, ModelSettings]:
        """Name the teacher, or also the network that it teaches if the run's model combines both."""
        if not self.student:
            return {}
        own = {TEACHER: {"name": "ridge"} | self._teacher}
        if self.refit:
            own[STUDENT] = {"name": self.student}
        return {n: model.model_copy(update={"embedding": 0} | o) for n, o in own.items()}

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return the one release of all rows."""
        return 1.0, 1

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse another length of rows than 1, of which the noise's size is computed."""
        if privacy.clip != 1:
            return f"a row of features is no longer than 1, and privacy.clip={privacy.clip:g}: leave it out"
        if self.alone:
            return (
                "{section}.alone=on asks no site for anything: leave privacy.noise_multiplier out"
            )
        if self.form == "integers":
            return "{section}.form=integers is for exact sums, not for noisy ones: set {section}.form=int8"
        if self.keep == "sites":
            return "{section}.keep=sites is for sums that can be taken out again, and noisy ones cannot: leave it out"
        return super().unprotected(privacy)

    def remark(self) -> str:
        """Return what sums reveal."""
        if self.alone:
            return ""
        return (
            "Without noise, the sums reveal how many examples of each class a site has, and whether a given example is "
            "among them."
        )

    def disclosure(self) -> Disclosure:
        """State what leaves a device; the classes' counts are the sums of the constant."""
        if self.alone:
            return Disclosure("nothing", update=False)
        sent = (
            "sums of features by class"
            if self.sums == "class"
            else "sums of features and of their products"
        )
        return Disclosure(sent, labels=True)
