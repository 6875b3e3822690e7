"""What runs at a site."""
