"""The configuration of a run: ``loading.load`` merges and validates it, ``resolved.Config`` is the frozen result."""
