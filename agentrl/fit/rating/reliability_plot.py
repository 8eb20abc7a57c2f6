"""The reliability diagram as SVG: how often a reward model is right at each stated confidence.

Written out here, since a plot library is no dependency of what measures a model. The picture asks
for nothing and runs nothing, and looks the same in a file of its own and inside a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from agentrl.metrics.intervals import wilson_interval
from agentrl.reward.calibration import Calibration, ReliabilityBin

_WIDTH, _HEIGHT = 560, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 84, 56
_BEFORE, _AFTER, _INK, _GRID = "#b8541a", "#1f5fa8", "#33373d", "#d9dce1"


@dataclass(frozen=True, slots=True)
class _Frame:
    """Places of probabilities and shares on the picture."""

    lowest: float
    """Share at the bottom, 0 to 0.5."""

    def x(self, p: float) -> float:
        return _LEFT + (p - 0.5) / 0.5 * (_WIDTH - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + (1 - share) / (1 - self.lowest) * height


def reliability_svg(before: Calibration, after: Calibration | None) -> str:
    """The share of right pairs over the mean probability of each bin, with 95 % intervals.

    Args:
        before: at temperature 1.
        after: at the fitted temperature; None where there is none.

    Returns:
        A whole SVG document, without any reference to another file.
    """
    curves = [("temperature 1", before, _BEFORE)]
    if after is not None:
        curves.append(("fitted temperature", after, _AFTER))
    shares = [_interval(each)[0] for _, found, _ in curves for each in found.table]
    frame = _Frame(lowest=min(0.5, math.floor(10 * min(shares)) / 10))
    said = "; ".join(f"{name}: {_words(found)}" for name, found, _ in curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-labelledby="rel-t rel-d" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{_INK}">',
        '<title id="rel-t">Reliability of the reward model</title>',
        f'<desc id="rel-d">{escape(said)}</desc>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_axes(frame),
    ]
    for place, (name, found, colour) in enumerate(curves):
        parts += _curve(frame, found, colour, square=place > 0)
        parts += _legend(f"{name}: {_words(found)}", colour, line=place, square=place > 0)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _words(found: Calibration) -> str:
    return f"ECE {found.ece:.3f} (by chance {found.ece_by_chance:.3f}), Brier {found.brier:.3f}"


def _axes(frame: _Frame) -> Iterator[str]:
    left, right = frame.x(0.5), frame.x(1.0)
    for tick in range(round(10 * frame.lowest), 11):
        share = tick / 10
        y = frame.y(share)
        yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{_GRID}"/>'
        yield f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{share:.1f}</text>'
    for tick in range(5, 11):
        x = frame.x(tick / 10)
        yield f'<path d="M{x:.1f} {frame.y(frame.lowest):.1f}v6" stroke="{_INK}"/>'
        yield (
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 22}" text-anchor="middle">'
            f"{tick / 10:.1f}</text>"
        )
    yield (
        f'<path d="M{left:.1f} {frame.y(0.5):.1f}L{right:.1f} {frame.y(1.0):.1f}" fill="none" '
        f'stroke="{_INK}" stroke-dasharray="5 4"/>'
    )
    middle = (left + right) / 2
    yield (
        f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "probability that the model gives to the answer it prefers</text>"
    )
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    yield (
        f'<text transform="translate(18 {height:.1f}) rotate(-90)" text-anchor="middle">'
        "share in which it is the better one</text>"
    )


def _curve(frame: _Frame, found: Calibration, colour: str, *, square: bool) -> Iterator[str]:
    points = [(frame.x(each.mean_p), frame.y(each.share_right)) for each in found.table]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    yield f'<path d="M{line}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>'
    for (x, y), each in zip(points, found.table, strict=True):
        low, high = _interval(each)
        yield f'<path d="M{x:.1f} {frame.y(low):.1f}V{frame.y(high):.1f}" stroke="{colour}"/>'
        said = (
            f"{each.count} pairs: mean p {each.mean_p:.3f}, right {each.share_right:.3f} "
            f"[{low:.3f}, {high:.3f}]"
        )
        yield f"<g>{_marker(x, y, colour, square=square)}<title>{said}</title></g>"


def _legend(text: str, colour: str, *, line: int, square: bool) -> Iterator[str]:
    y = 26 + 22 * line
    yield _marker(_LEFT + 6, y - 4, colour, square=square)
    yield f'<text x="{_LEFT + 20}" y="{y}">{escape(text)}</text>'


def _marker(x: float, y: float, colour: str, *, square: bool) -> str:
    """Two shapes, so that a colour never tells curves apart alone."""
    if square:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#ffffff" stroke="{colour}" '
        'stroke-width="2"/>'
    )


def _interval(each: ReliabilityBin) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of a bin."""
    found = wilson_interval([each.share_right] * each.count)
    assert found is not None, "shares lie in [0, 1]"
    return found
