"""What both sides must agree on before anything travels, a file a method."""
