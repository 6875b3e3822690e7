"""FedPVR on the device (Li et al., 2023): SCAFFOLD's correction of the last layers, where sites differ most."""

from __future__ import annotations

from client_app.scaffold import ScaffoldClient


class FedPVRClient(ScaffoldClient):
    """Steps by -eta (g_k(y) - c_k + c) in the corrected layers, by -eta g_k(y) in the others."""

    course = ScaffoldClient.course
