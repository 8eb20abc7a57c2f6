"""Real small runs with planted faults, and the streams recorded from them."""
