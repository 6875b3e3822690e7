"""A run's model and synthetic images as a folder that needs no Nectar, and the figures of such a model on images."""
