"""What an operator does: keys, backup, and looking after a machine."""
