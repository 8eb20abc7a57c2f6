"""Where the log-probabilities of sampler and trainer differ, by pattern and likely cause."""
