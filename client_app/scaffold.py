"""SCAFFOLD on the device (Karimireddy et al., 2020, Algorithm 1): steps corrected by control variates.

Under FedPVR (Li et al., 2023) they correct the last layers alone, where sites differ most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from client_app.device import DeviceClient, phase
from client_app.local_training import trained_weights
from client_app.state import Tensors
from common.learning.training import Local, Trained, mean_gradient
from common.settings.fedavg import ScaffoldSettings
from common.specs.averaging import CONTROL, WEIGHTS, bundle_spec, control_spec
from common.wire.bundle import Bundle
from common.wire.weights import Weights


class ScaffoldClient(DeviceClient):
    """Keeps c_k, which begins at 0, and steps by -eta (g_k(y) - c_k + c).

    The correction is added to the step and not to the gradient, where momentum would go on applying it: control
    variates of option II are mean steps, and have momentum's part in them. Those of option I are gradients, whose
    correction grows from step to step as momentum has the gradients grow.
    """

    @phase("train", takes=bundle_spec)
    def train(self, given: Bundle) -> Bundle:
        """Return w_k and c_k+ - c_k."""
        w = given.part(WEIGHTS, Weights)
        own, local = self._own(), self.local(given)
        ended, trained = trained_weights(self, w, local)
        new = self._control(w, ended, local.drift, trained)
        self.remember(new)
        change = Weights({name: new[name] - own[name] for name in new})
        return Bundle({WEIGHTS: ended, CONTROL: change})

    def local(self, given: Bundle) -> Local:
        """Return training by corrected steps, to which a method may add an objective or a pull."""
        c, own = given.part(CONTROL, Weights).read_only, self._own()
        settings = self.settings(ScaffoldSettings)
        carried_on = settings.momentum if settings.option == "I" else 0.0
        return Local(drift={name: c[name] - own[name] for name in c}, carried_on=carried_on)

    def _own(self) -> Tensors:
        """Return c_k."""
        return self.recall() or control_spec(self.run).zeros().tensors

    def _control(
        self, w: Weights, ended: Weights, drift: Mapping[str, Tensor], trained: Trained
    ) -> dict[str, Tensor]:
        """Return c_k+: the gradient at w_r (option I), or c_k - c + (w_r - w_k) / (K eta) (option II)."""
        if self.settings(ScaffoldSettings).option == "I":
            return self._gradient_at(w, drift)
        path = trained.steps * trained.lr
        return {
            name: (w.read_only[name] - ended.tensors[name]) / path - gap
            for name, gap in drift.items()
        }

    def _gradient_at(self, w: Weights, names: Collection[str]) -> dict[str, Tensor]:
        """Return the gradient at ``w`` of the mean loss over all of the site's images."""
        model, compute = self.model(w), self.run.config.compute
        batch = self.settings(ScaffoldSettings).batch
        mean_gradient(model, self.samples, self.run.task, batch, compute.precision)
        return {
            n: p.grad.cpu()
            for n, p in model.named_parameters()
            if p.grad is not None and n in names
        }
