"""Changes of the config that help, one module a part of the run."""
