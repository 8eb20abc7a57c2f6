"""Dropout of adapters, a folder that they start from, and a base of 4 bits below them."""
