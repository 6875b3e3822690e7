"""A record goes home: packed by a ServerApp and printed through its run's log."""
