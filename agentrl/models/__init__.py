"""Sources of models, and parts that engine and trainer share for the same numbers."""
