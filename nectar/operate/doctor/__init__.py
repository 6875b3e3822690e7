"""Checks before a federation starts, on the operator's machine and at a site."""
