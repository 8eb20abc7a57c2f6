"""Parts of a model that engine and trainer share, so that both compute the same numbers."""
