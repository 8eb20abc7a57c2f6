"""Simulates runs at the size of a fleet: all is real but engines and the trainer's arithmetic."""
