"""What code a run is of: imports by path, closures of imports, fingerprints."""
