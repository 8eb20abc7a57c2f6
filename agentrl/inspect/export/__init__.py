"""Rollouts as files: JSONL, HTML, ATIF."""
