"""Damped averaging: FedAvg whose sites send a share of their update. Copy this folder to begin a method of your own."""

from common.methods import Method

METHOD = Method(
    "damped",
    strategy="damped.strategy:Server",
    client="damped.client:Client",
    settings="damped.settings:Settings",
)
