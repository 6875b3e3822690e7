"""What a data set is and what of it a model takes; the readers of data sets are in ``common.data``."""
