"""A pool that keeps prepared sandboxes and limits how many run."""
