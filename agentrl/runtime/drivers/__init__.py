"""The loops that train: synchronous, asynchronous, tail batching, and their parts."""
