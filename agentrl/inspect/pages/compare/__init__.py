"""Two sets of rollouts held against each other: numbers, tasks won and lost, words."""
