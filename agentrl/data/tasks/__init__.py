"""Datasets to tasks: sources, file formats, difficulty, the cursor through them."""
