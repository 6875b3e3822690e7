"""Class-conditional generators whose latents FedDGM's server optimises in the images' place."""
