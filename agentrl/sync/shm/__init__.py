"""Weight transfer through shared memory on one host."""
