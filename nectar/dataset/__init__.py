"""What `nectar data` prints and draws: a data set, what was left out of it, and who would hold what."""
