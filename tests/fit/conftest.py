"""The ranks that several tests of fits train with, too."""

from tests.train.conftest import crew

__all__ = ["crew"]
