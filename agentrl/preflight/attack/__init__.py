"""The attacks behind `agentrl env attack`."""
