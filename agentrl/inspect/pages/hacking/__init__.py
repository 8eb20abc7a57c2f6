"""Rewards held against scores, and near-identical answers: signs of a hacked reward."""
