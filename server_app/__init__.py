"""What runs at the server: the loop, evaluation, the record."""
