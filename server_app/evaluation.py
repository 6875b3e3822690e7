"""The server's own evaluation: on the validation share, which choices may look at, and on the test set."""

from __future__ import annotations

from flwr.app import ArrayRecord

from common.data import samples
from common.run import Run
from common.task import Evaluation
from common.training import evaluate
from server_app.loop import Judge


def server_judge(run: Run) -> Judge:
    """Return what evaluates weights after a round; it loads its data at once, so that a lack shows early.

    Raises
    ------
    DataError
        If the server is to evaluate and the data set is not there.
    """
    if run.config.evaluation.on not in ("server", "both"):
        return lambda arrays: (None, None)
    test = samples(run.dataset.test, run.info).to(run.device)
    held = samples(run.dataset.train, run.info, run.validation).to(run.device)
    model = run.build_model()
    settings = run.config

    def judge(arrays: ArrayRecord) -> tuple[Evaluation | None, Evaluation | None]:
        model.load_state_dict(arrays.to_torch_state_dict(keep_input=True))
        batch, precision = settings.evaluation.batch, settings.compute.precision
        on_test = evaluate(model, test, run.task, batch, precision)
        on_held = evaluate(model, held, run.task, batch, precision) if len(held) else None
        return on_test, on_held

    return judge
