"""The whole grid of misbehaving user code: every way in every place."""

from __future__ import annotations

import pytest

from tests.rollout.user_code.grid import PLACES
from tests.rollout.user_code.misbehaviour import WAYS
from tests.rollout.user_code.test_grid import run_grid

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", PLACES)
def test_every_way(place: str) -> None:
    status, found = run_grid(place)
    assert (status, found.splitlines()[-1:]) == (0, [f"{len(WAYS)} cells, 0 wrong"]), found
