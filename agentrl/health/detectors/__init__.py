"""The detectors, one file a subject."""
