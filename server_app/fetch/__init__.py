"""A record comes home: packed by a ServerApp, printed through its run's log, unpacked where it was asked for."""
