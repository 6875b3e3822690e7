"""Records of runs: how they are found, read, identified and continued."""
