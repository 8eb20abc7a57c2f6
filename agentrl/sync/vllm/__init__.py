"""Weight transfer inside vLLM's processes."""
