"""The methods' servers, as Flower strategies."""
