"""Rollouts that have begun: what they wait for, what they cost, and how they release it."""
