"""Memory of a run, worked out from its config and a model's config alone."""
