"""Check a finished run against itself: replay a step, explain where sampler and trainer differ."""
