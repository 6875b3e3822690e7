"""Typed payloads, a file each: what travels between server and sites, encoded to NumPy arrays, checked on arrival."""
