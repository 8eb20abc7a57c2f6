"""Kernels of attention over packed rows beside the written-out one, and the choice among them."""
