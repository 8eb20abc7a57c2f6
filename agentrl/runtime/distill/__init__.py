"""Teachers of a run: checked before it, opened for its trainer, and given their hints."""
