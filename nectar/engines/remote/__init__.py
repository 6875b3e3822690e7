"""A run at a SuperLink that runs elsewhere: submitted and watched."""
