"""What both sides learn with: the run, the task, training, its arithmetic and its draws of examples."""
