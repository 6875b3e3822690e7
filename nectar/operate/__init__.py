"""What an operator does: keys, and looking after a machine."""
