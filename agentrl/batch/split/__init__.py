"""Batches in shares: every rank decides about the whole step and prepares its own part of it."""
