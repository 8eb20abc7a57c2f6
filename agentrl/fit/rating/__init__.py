"""Measures reward models and scores answers with them: `agentrl rm`."""
