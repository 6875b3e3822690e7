"""Records of runs: found, read, told apart, gone on from."""
