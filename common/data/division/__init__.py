"""How a training set is divided over sites."""
