"""A run at a SuperLink that somebody else started: submitted, watched, and its record brought home."""
