"""The settings of distillation by logits: on which public images, and what becomes of several models' answers."""

from typing import Literal

from common.settings.section import Section, setting


class DistilSettings(Section):
    """Public images without labels, and how several models' logits on them become one answer (feddf, fedmd)."""

    images: str = setting(
        "validation",
        "the images: validation are the server's own, from whose labels nothing is learned; noise is drawn by the "
        "run's seed; else those of another data set, or of the synthetic.npz that `nectar export` writes",
        allowed="validation, noise, the name of a data set, or an absolute path to a synthetic.npz",
        pattern="^.+$",
    )
    count: int = setting(500, "images at the most, drawn by the run's seed", ge=1, amount="images")
    aggregation: Literal["mean", "entropy"] = setting(
        "mean",
        "the answer of all: mean is the softmax of the mean logits; entropy sharpens the mean of the softmaxes "
        "(DS-FL's entropy reduction)",
    )
    temperature: float = setting(
        0.1,
        "aggregation=entropy: what mean probabilities are divided by before another softmax",
        symbol="T",
        source="DS-FL",
        gt=0,
    )
    keep: Literal["none", "sites"] = setting(
        "none",
        "what a record keeps of fedmd's last round beside the answer of all: nothing, or each site's logits, which "
        "`nectar audit` examines",
    )

    @property
    def sharpness(self) -> float | None:
        """The temperature where the aggregation has one."""
        return self.temperature if self.aggregation == "entropy" else None
