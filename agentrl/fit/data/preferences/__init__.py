"""Preference pairs: out of files of any common layout, out of runs, and what is wrong with them."""
