"""The data sets that are known by name, and where their files come from."""
