"""The inspector in a terminal."""
