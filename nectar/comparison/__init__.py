"""Methods over seeds, side by side: the plan of the runs, their processes, and the tables."""
