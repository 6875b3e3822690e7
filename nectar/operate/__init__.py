"""The operator's tasks: keys, and checks of a machine."""
