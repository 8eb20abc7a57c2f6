"""Weight transfer by broadcast over a process group."""
