"""Speed, measured: ``python -m benchmarks [name ...]``. An entry is one file, listed in `ENTRIES`."""

ENTRIES = {
    "matching_step": "benchmarks.matching_step",
    "fedavg_round": "benchmarks.fedavg_round",
    "small_devices": "benchmarks.small_devices",
    "scaling": "benchmarks.scaling",
    "gpu": "benchmarks.gpu",
    "nodes": "benchmarks.nodes",
    "first_command": "benchmarks.first_command",
    "round_memory": "benchmarks.round_memory",
    "round_cost": "benchmarks.round_cost",
    "pool_round": "benchmarks.pool_round",
    "synthetic_update": "benchmarks.synthetic_update",
    "diffusion_step": "benchmarks.diffusion_step",
    "trajectory_step": "benchmarks.trajectory_step",
    "private_step": "benchmarks.private_step",
}
"""Entries by name: modules with ``rows(pairs: int) -> Iterator[Row]``, imported on demand."""
