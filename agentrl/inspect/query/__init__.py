"""SQL over a run, in a process that can be killed."""
