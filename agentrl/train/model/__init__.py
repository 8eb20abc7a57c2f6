"""The policy's model: loading, attention over packed rows, log-probabilities, adapters."""
