"""What an attacker finds out of one release, set beside the epsilon that is claimed of it."""
