"""Trajectories and what the trainer made of their tokens, as Parquet files."""
