"""Run directories read as they are, also damaged or growing ones."""
