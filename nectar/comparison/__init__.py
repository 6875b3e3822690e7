"""Comparisons of methods over seeds: the plan of the runs, their processes, and the tables."""
