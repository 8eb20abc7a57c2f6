"""The checks behind `agentrl sandbox check`, the same for every backend."""
