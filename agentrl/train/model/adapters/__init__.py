"""What adapters can have beside their matrices: dropout, a start, a base in 4 bits."""
