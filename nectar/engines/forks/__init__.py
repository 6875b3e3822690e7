"""A process that has imported what others need, and forks itself for each who asks."""
