"""``nectar report``: what a run did, as one HTML file that needs nothing else."""
