"""The data of a fit: layouts of conversations and of pairs, where they come from, and their ids."""
