"""Simulation of sites in several worker processes, with the same messages and results as in one process."""
