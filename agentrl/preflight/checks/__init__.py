"""The checks themselves, one file a subject."""
