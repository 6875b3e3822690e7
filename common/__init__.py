"""What server and sites share."""
