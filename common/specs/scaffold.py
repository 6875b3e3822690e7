"""What travels under SCAFFOLD and FedPVR: weights, and control variates of the parameters that are corrected."""

from __future__ import annotations

from common.errors import ConfigError
from common.learning.run import Run
from common.settings.scaffold import ScaffoldSettings
from common.wire.bundle import BundleSpec
from common.wire.weights import WeightsSpec

WEIGHTS, CONTROL = "weights", "control"


def control_spec(run: Run) -> WeightsSpec:
    """Return a control variate's names and shapes; ConfigError if the settings name a layer that the model lacks."""
    settings = run.settings(ScaffoldSettings)
    try:
        return run.spec.only(settings.corrected(run.spec.trained))
    except ValueError as error:
        raise ConfigError(f"{error}.") from None


def bundle_spec(run: Run) -> BundleSpec:
    """Return the form of both ways: w_r and c to a site; w_k and what its c_k changed by to the server."""
    return BundleSpec({WEIGHTS: run.spec, CONTROL: control_spec(run)})
