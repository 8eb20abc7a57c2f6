"""The tints of tokens by reason are told apart in both themes, as the eye sees them (OKLab)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import agentrl.inspect

STYLE = Path(agentrl.inspect.__file__).parent / "static" / "style"
TOGETHER = [
    ("trained", "prompt", "prefix", "env", "dull"),
    ("trained", "prompt", "prefix", "env", "cut", "stale", "dropped"),
    ("prompt", "prefix", "env", "eval"),
]
"""Reasons that tokens of one rollout, or of rollouts of one step, have."""
_LEAST = 0.05
"""Distance in OKLab; 0.02 is about the smallest that is seen between fields side by side."""


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_reasons_are_told_apart(theme: int) -> None:
    names = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", (STYLE / "base.css").read_text()))
    colours = {
        name: np.array([int(both.split(", ")[theme][i : i + 2], 16) / 255 for i in (1, 3, 5)])
        for name, both in names.items()
        if re.fullmatch("#[0-9a-f]{6}, #[0-9a-f]{6}", both)
    }
    rule = r"\.w-(\w+) \{[^}]*background: color-mix\(in oklab, var\(--(\w+)\) (\d+)%, transparent"
    tints = {
        name: (1 - int(share) / 100) * colours["surface"] + int(share) / 100 * colours[colour]
        for name, colour, share in re.findall(rule, (STYLE / "tokens.css").read_text())
    }
    seen = {name: oklab(tint) for name, tint in tints.items()}
    close = {
        (one, other): round(gap, 3)
        for names in TOGETHER
        for one, other in itertools.combinations(names, 2)
        if (gap := float(np.linalg.norm(seen[one] - seen[other]))) < _LEAST
    }
    assert not close


def oklab(srgb: np.ndarray) -> np.ndarray:
    """https://bottosson.github.io/posts/oklab/"""
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    cone = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                     [0.2119034982, 0.6806995451, 0.1073969566],
                     [0.0883024619, 0.2817188376, 0.6299787005]]) @ linear  # fmt: skip
    return np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                     [1.9779984951, -2.4285922050, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.8086757660]]) @ np.cbrt(cone)  # fmt: skip
