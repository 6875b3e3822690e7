"""A run at a SuperLink that somebody else started: submitted and watched."""
