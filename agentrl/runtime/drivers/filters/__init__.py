"""Judgements of groups that have ended: too old, or dropped by the dynamic filter."""
