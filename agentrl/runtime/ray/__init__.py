"""The stages of a run as Ray actors, on one machine or many. The only package that imports Ray.

Actors are the plain objects of the other packages with a thin class around them; the driver keeps
its loops and talks to groups of actors, one call a line. See the README of `agentrl.runtime`.
"""
