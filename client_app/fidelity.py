"""How near what a device sends comes to the update that FedAvg's local training would have given."""

from __future__ import annotations

from torch import Tensor


def fidelity(sent: Tensor, reference: Tensor) -> dict[str, float]:
    """Compare the update the server will decode with the one it stands for.

    Parameters
    ----------
    sent, reference : Tensor
        Updates w' - w_r, float [P].

    Returns
    -------
    dict of str to float
        ``cosine`` of the two, and ``norm_error`` = |sent - reference| / |reference|. Where one of the two is
        zero the cosine is 0; where the reference is, the error is 0 for a zero update, else 1.
    """
    a, b = sent.double(), reference.double()
    length, other = float(a.norm()), float(b.norm())
    if not other:
        return {"cosine": 0.0, "norm_error": float(length > 0)}
    cosine = float(a @ b) / (length * other) if length else 0.0
    return {"cosine": cosine, "norm_error": float((a - b).norm()) / other}
