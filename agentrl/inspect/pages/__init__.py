"""The answers behind each view of the inspector, as plain data."""
