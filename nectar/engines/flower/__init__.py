"""How one talks to Flower: its programs, its connections, its log."""
