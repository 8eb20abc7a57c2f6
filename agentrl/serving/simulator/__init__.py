"""A simulation that compares routing policies on recorded or drawn sessions."""
