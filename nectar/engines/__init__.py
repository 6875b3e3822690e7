"""What carries a run out: in this process, in several, on Ray, at a SuperLink."""
