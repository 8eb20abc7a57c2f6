"""The checks behind `agentrl env check`."""
