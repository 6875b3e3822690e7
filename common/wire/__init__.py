"""Typed payloads, a file each: what server and sites exchange, encoded to NumPy arrays, checked on arrival."""
