"""Code in processes of its own, which can be killed: `child`, `child_main`, `tree`, `scratch`."""
