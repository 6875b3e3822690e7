"""Where draws come from: generators by the run's seed, the system's entropy, and rows of draws by example."""
