"""Conversations for supervised fine-tuning: read from files, and out of stored rollouts."""
