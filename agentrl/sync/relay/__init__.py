"""Weight transfer from engine to engine over TCP, for hosts without GPUs between them."""
