"""The files of a run directory: their names, and reading them as they are."""
