"""The interface to Flower: its programs, its connections, its log."""
