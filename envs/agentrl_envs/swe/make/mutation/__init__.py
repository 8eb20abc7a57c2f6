"""Small changes that break a working function: the operators, and where they apply."""
