"""Which tests run one after the other although pytest runs several processes.

Servers and clusters compute on all cores while they start. Several at once make each other late,
so every test that starts one goes to the same process, and those of one session share its server.
"""

from __future__ import annotations

import pytest

_HEAVY = ("vllm", "ray_")


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(word in item.path.stem for word in _HEAVY):
            item.add_marker(pytest.mark.xdist_group("fleet"))
