"""What a reader of the images that were sent, or of the weights, learns of who was in the data."""
