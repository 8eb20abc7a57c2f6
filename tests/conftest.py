"""Which tests run alone, one after the other.

Servers and clusters compute on all cores while they start, and what they are asked meanwhile takes
its time. So whatever starts one is marked `fleet` and `make test` runs it after everything else.
"""

from __future__ import annotations

import pytest

_STARTS_PROCESSES = ("vllm", "ray_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(word in item.path.stem for word in _STARTS_PROCESSES):
            item.add_marker(pytest.mark.fleet)
