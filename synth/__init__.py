"""The methods' mathematics, which needs torch alone."""
