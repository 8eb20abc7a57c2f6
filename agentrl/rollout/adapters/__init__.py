"""Environments written for other trainers, behind our contract."""
