"""The certificate behind `agentrl env audit`."""
