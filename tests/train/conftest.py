"""Processes that several tests train with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.crew import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Three ranks, started when the first test asks for them."""
    made = Crew(3)
    yield made
    made.close()
