"""Damped averaging: FedAvg whose sites send a part of their update. Copy this folder to start your own method."""

from common.methods import Method

METHOD = Method(
    "damped",
    strategy="damped.strategy:Server",
    client="damped.client:Client",
    settings="damped.settings:Settings",
)
