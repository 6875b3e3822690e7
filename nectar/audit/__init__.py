"""What an attacker finds out of what a run sent."""
