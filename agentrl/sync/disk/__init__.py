"""Weight transfer through a folder."""
