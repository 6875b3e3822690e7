"""Files and tensors on disk: written completely or not at all, read without unpickling."""
