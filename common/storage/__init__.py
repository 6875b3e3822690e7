"""Files and tensors on disk: written whole or not at all, read without unpickling."""
