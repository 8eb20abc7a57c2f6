from __future__ import annotations

import gc

from agentrl.machine.processes.heap import frozen_heap


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def nodes() -> int:
    return sum(type(item) is Node for item in gc.get_objects())


def test_old_objects_are_not_visited_and_new_ones_are() -> None:
    old = Node()
    assert nodes() == 1
    with frozen_heap():
        # `get_objects` lists what a pass visits.
        assert nodes() == 0
        assert gc.get_freeze_count() > 1000
        Node()
        assert nodes() == 1
        gc.collect()
        assert nodes() == 0
    assert nodes() == 1
    del old
    gc.collect()
    assert nodes() == 0
