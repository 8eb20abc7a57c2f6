"""One device for trainer and servers, in turn."""
