"""The readers of data sets, and who holds what of them."""
