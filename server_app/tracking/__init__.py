"""Who is told of a run's rounds beside its record: a user's own function, and trackers."""

EVENTS = "tensorboard"
"""The folder of a record in which TensorBoard's event files lie."""
