"""FedDGM's server distillation: latents that are moved by hand-worked gradients, and a real segment of training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from seeds import rng
from torch import Tensor

from common.data.published.sources import read_digits
from common.models import build
from synth.synthetic_updates import Loss, Parameters, loss_of
from synth.trajectory_matching import (
    InnerTraining,
    MatchedTrajectory,
    Segment,
    distil,
    pull_back,
    render,
)

LABELS = torch.zeros(1, dtype=torch.int64)
TWO_STEPS = InnerTraining(2)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def quadratic(w: Parameters, x: Tensor, y: Tensor) -> Tensor:
    """F = (theta - x)^2 / 2: from 0, two steps lead to x (1 - (1 - eta)^2)."""
    return 0.5 * (w["theta"] - x).square().mean()


SEGMENT = Segment({"theta": numbers(0.0)[0]}, {"theta": numbers(1.0)[0]})


def doubled(z: Tensor) -> Tensor:
    return 2 * z


def by_hand(z: float, eta: float, lr: float, step_lr: float, count: int) -> list[list[float]]:
    """Return L_MTT = (x (1 - (1 - eta)^2) - 1)^2, z and eta for each of the steps, x = 2 z, momentum 1/2."""
    rows, speed, step_speed = [], 0.0, 0.0
    for _ in range(count):
        reach = 1 - (1 - eta) ** 2
        miss = 2 * z * reach - 1
        speed = 0.5 * speed + 2 * miss * 2 * reach
        step_speed = 0.5 * step_speed + 2 * miss * 2 * z * 2 * (1 - eta)
        z, eta = z - lr * speed, eta - step_lr * step_speed
        rows.append([miss**2, z, eta])
    return rows


def moved(
    z: Tensor, eta: Tensor, count: int, segment: Segment = SEGMENT, step_lr: float = 0.01
) -> MatchedTrajectory:
    return distil(
        quadratic,
        segment,
        doubled,
        [z],
        LABELS.expand(*eta.shape, 1),
        eta,
        training=TWO_STEPS,
        iterations=count,
        latent_lrs=[0.03],
        step_lr=step_lr,
        momentum=0.5,
        generator=rng(),
    )


def test_three_iterations_by_hand() -> None:
    z, eta = numbers(2.0).reshape(1, 1, 1, 1), numbers(0.5)[0]
    done = moved(z, eta, 3)
    rows = by_hand(2.0, 0.5, 0.03, 0.01, 3)
    assert done.losses.tolist() == pytest.approx([row[0] for row in rows], rel=1e-12)
    assert done.latents[0].flatten().tolist() == pytest.approx([rows[-1][1]], rel=1e-12)
    assert done.data.images.flatten().tolist() == pytest.approx([2 * rows[-1][1]], rel=1e-12)
    assert float(done.data.step_size) == pytest.approx(rows[-1][2], rel=1e-12)
    assert (float(z), float(eta)) == (2.0, 0.5)


def test_clients_together_move_as_each_alone() -> None:
    """A second client with a start and a step size of its own, and the same theta_m, beside the one above."""
    together = Segment(SEGMENT.start, {"theta": numbers(1.0, 1.0)})
    z = numbers(2.0, 1.5).reshape(2, 1, 1, 1, 1)
    done = moved(z, numbers(0.5, 0.4), 3, together)
    each = by_hand(2.0, 0.5, 0.03, 0.01, 3), by_hand(1.5, 0.4, 0.03, 0.01, 3)
    ended = torch.stack((done.latents[0].flatten(), done.data.step_size), 1)
    assert done.losses.tolist() == [
        pytest.approx([a[0], b[0]], rel=1e-12) for a, b in zip(*each, strict=True)
    ]
    assert ended.tolist() == [pytest.approx(rows[-1][1:], rel=1e-12) for rows in each]


def test_no_iteration_leaves_the_start() -> None:
    done = moved(numbers(2.0).reshape(1, 1, 1, 1), numbers(0.5)[0], 0)
    assert done.losses.shape == (0,)
    assert float(done.data.images) == 4.0
    assert float(done.data.step_size) == 0.5


def test_the_step_size_stays_above_0() -> None:
    """dL/deta = 16 at the start: a rate of 1 would lead to -15.5."""
    done = moved(numbers(2.0).reshape(1, 1, 1, 1), numbers(0.5)[0], 1, step_lr=1.0)
    assert float(done.data.step_size) == pytest.approx(0.005, rel=1e-12)


def test_latents_that_diverge_are_refused_with_the_iteration() -> None:
    with pytest.raises(
        FloatingPointError, match=r"at iteration [2-9] of 9: lower the learning rate"
    ):
        distil(
            quadratic,
            SEGMENT,
            doubled,
            [numbers(2.0).reshape(1, 1, 1, 1)],
            LABELS,
            numbers(0.5)[0],
            training=TWO_STEPS,
            iterations=9,
            latent_lrs=[1e200],
            step_lr=0.0,
            momentum=0.5,
            generator=rng(),
        )


# --- the generator ---


def two_layers(z: Tensor, f: Tensor) -> Tensor:
    """Images [n, 1, 2, 2] of latents [n, 3] and [n, 4], row by row: tanh(z A) + 3 f."""
    weights = torch.arange(12, dtype=z.dtype).reshape(3, 4) / 10
    return (torch.tanh(z @ weights) + 3 * f).reshape(-1, 1, 2, 2)


@pytest.mark.parametrize("chunk", [0, 2, 5, 9])
def test_pulling_back_is_the_chain_rule_in_any_pieces(chunk: int) -> None:
    """dL/df = 3 dL/dD and dL/dz = (dL/dD (1 - tanh^2)) A', from rows of five."""
    z, f, slopes = (torch.randn(5, d, dtype=torch.float64, generator=rng(d)) for d in (3, 4, 2 * 2))
    by_z, by_f = pull_back(two_layers, [z, f], slopes.reshape(5, 1, 2, 2), chunk)
    weights = torch.arange(12, dtype=z.dtype).reshape(3, 4) / 10
    assert torch.allclose(by_f, 3 * slopes, rtol=1e-14)
    right = (slopes * (1 - torch.tanh(z @ weights).square())) @ weights.T
    assert torch.allclose(by_z, right, rtol=1e-12)
    images = render(two_layers, [z, f], chunk)
    assert torch.allclose(images.flatten(1), torch.tanh(z @ weights) + 3 * f, rtol=1e-14)
    assert not images.requires_grad


def test_the_generator_never_sees_more_rows_than_a_chunk() -> None:
    seen: list[int] = []

    def counted(z: Tensor) -> Tensor:
        seen.append(len(z))
        return z

    z = torch.randn(5, 1, 2, 2, generator=rng())
    pull_back(counted, [z], torch.ones_like(z), 2)
    render(counted, [z], 2)
    assert seen == [2, 2, 1] * 2


# --- a client's real training ---


def client_segment() -> tuple[Loss, Segment]:
    """Return a client's training for five epochs on 256 digits below 5, by SGD in batches of 32."""
    train, _ = read_digits()
    below = torch.as_tensor(train.labels) < 5
    x = ((torch.as_tensor(train.images).float() - 5) / 6)[below][:256]
    y = torch.as_tensor(train.labels)[below][:256]
    model = build("convnet", (1, 8, 8), 10, depth=2, width=16, generator=rng())
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(5):
        for batch in torch.randperm(256, generator=rng(1)).split(32):
            model.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p -= 0.05 * p.grad
    assert float((model(x).argmax(1) == y).double().mean()) > 0.8
    end = {name: p.detach() for name, p in model.named_parameters()}
    return loss_of(model, F.cross_entropy), Segment(start, end)


def digits(seed: int, iterations: int) -> MatchedTrajectory:
    """Distil the client's training into two images of each of the ten classes."""
    loss, segment = client_segment()
    return distil(
        loss,
        segment,
        torch.clone,
        [torch.randn(20, 1, 8, 8, generator=rng(seed))],
        torch.arange(10).repeat_interleave(2),
        torch.tensor(0.1),
        training=InnerTraining(10, transforms=("flip", "crop")),
        iterations=iterations,
        latent_lrs=[300.0],
        step_lr=1e-3,
        momentum=0.5,
        generator=rng(seed),
    )


@pytest.mark.extended
def test_images_are_found_that_lead_most_of_the_way() -> None:
    losses = digits(3, 30).losses
    assert float(losses[0]) > 0.9
    assert float(losses[-1]) < 0.5 * float(losses[0])


@pytest.mark.extended
def test_equal_generators_distil_equal_bits() -> None:
    first, again, other = digits(3, 2), digits(3, 2), digits(4, 2)
    assert torch.equal(first.data.images, again.data.images)
    assert torch.equal(first.losses, again.losses)
    assert not torch.equal(first.losses, other.losses)
