"""Rules and detectors while a run trains."""
