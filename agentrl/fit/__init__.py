"""`agentrl fit`: training on conversations and preference pairs that are there already."""
