"""What both sides must agree on before anything is sent, a file for each method."""
