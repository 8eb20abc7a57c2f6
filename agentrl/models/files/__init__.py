"""Files of tensors, written and read without a copy of the whole."""
