"""The inspector as a local web page."""
