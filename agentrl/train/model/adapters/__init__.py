"""Dropout of adapters, and a folder that they start from."""
