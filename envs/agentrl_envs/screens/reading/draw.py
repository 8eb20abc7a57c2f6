"""Pictures of sheets, drawn by matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

import functools
import threading
from typing import Any

from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command
from agentrl_envs.screens.reading.sheets import UNIT, Sheet

WIDTH, HEIGHT = 336, 252
"""Pixels of a sheet as it is shown."""
_INCH = 100
"""Pixels; only the size of the print follows from it."""
_COLORS = ("#1f5fc4", "#d9820f", "#2a8a3e")
_LEFT, _BOTTOM, _RIGHT, _TOP = 0.12, 0.12, 0.98, 0.88
"""Edges of the inside of a chart, as parts of the picture."""
# matplotlib shares fonts and settings between threads.
_DRAWING = threading.Lock()


@functools.lru_cache(maxsize=64)
def sheet_picture(sheet: Sheet) -> Any:
    """The picture of a sheet in its full size, `shrink` times that in which it is shown.

    Takes some hundredths of a second, and the first one a second, so call it in a thread.

    Raises:
        ConfigError: matplotlib or Pillow is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from PIL import Image
    except ImportError as error:
        raise ConfigError(
            f"agentrl_envs.screens.reading draws with matplotlib and Pillow ({error}); run "
            f"{install_command('screens')}"
        ) from error
    with _DRAWING:
        width, height = WIDTH * sheet.shrink, HEIGHT * sheet.shrink
        # Larger sheets have print of the same size in pixels: shown smaller, it cannot be read.
        figure = Figure(figsize=(width / _INCH, height / _INCH), dpi=_INCH, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        if sheet.kind == "table":
            _draw_table(figure, sheet)
        else:
            _draw_chart(figure, sheet)
        canvas.draw()
        return Image.frombuffer("RGBA", (width, height), bytes(canvas.buffer_rgba())).convert("RGB")


def shown_picture(sheet: Sheet) -> Any:
    """The picture of a sheet as the model first sees it."""
    from PIL import Image

    whole = sheet_picture(sheet)
    return whole if sheet.shrink == 1 else whole.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def zoomed_picture(sheet: Sheet, x: int, y: int, w: int, h: int) -> Any:
    """A part of a sheet, given in pixels of the shown picture, as large as fits into its size."""
    from PIL import Image

    whole = sheet_picture(sheet)
    scale = sheet.shrink
    part = whole.crop((x * scale, y * scale, (x + w) * scale, (y + h) * scale))
    factor = min(WIDTH / part.width, HEIGHT / part.height)
    size = max(1, round(part.width * factor)), max(1, round(part.height * factor))
    return part.resize(size, Image.Resampling.LANCZOS)


def parts_to_read(sheet: Sheet) -> list[tuple[int, int, int, int]]:
    """The parts of a sheet that a reader has to zoom into, as x, y, w, h; none if it is large.

    They are quarters: of a chart all, of a table those with the names and values of the question.
    """
    if sheet.shrink == 1:
        return []
    w, h = WIDTH // 2, HEIGHT // 2
    if sheet.kind != "table":
        return [(x, y, w, h) for y in (0, h) for x in (0, w)]
    lines, columns = len(sheet.names) + 1, len(sheet.columns) + 1
    # The heads are in the first line, and the names in the first column.
    tops = {(2 * place + 3) * h // lines // h * h for place in sheet.places} | {0}
    lefts = {(2 * sheet.column + 3) * w // columns // w * w} | {0}
    return [(x, y, w, h) for y in sorted(tops) for x in sorted(lefts)]


def _draw_table(figure: Any, sheet: Sheet) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    lines = [
        [name, *(str(column[at]) for column in sheet.values)] for at, name in enumerate(sheet.names)
    ]
    table = axes.table(
        cellText=lines,
        colLabels=["", *sheet.columns],
        cellLoc="center",
        bbox=[0.01, 0.01, 0.98, 0.98],
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9)


def _draw_chart(figure: Any, sheet: Sheet) -> None:
    axes = figure.add_axes((_LEFT, _BOTTOM, _RIGHT - _LEFT, _TOP - _BOTTOM))
    places = range(len(sheet.names))
    count = len(sheet.columns)
    for number, (name, values) in enumerate(zip(sheet.columns, sheet.values, strict=True)):
        color = _COLORS[number]
        if sheet.kind == "line":
            axes.plot(places, values, color=color, marker="o", markersize=4, label=name)
        else:
            width = 0.8 / count
            shift = (number - (count - 1) / 2) * width
            axes.bar([at + shift for at in places], values, width=width, color=color, label=name)
    axes.set_xticks(list(places), sheet.names, fontsize=8)
    axes.set_yticks(range(0, 101, 2 * UNIT))
    axes.set_yticks(range(0, 101, UNIT), minor=True)
    axes.set_ylim(0, 101)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", which="both", linewidth=0.5, color="#cccccc")
    axes.set_axisbelow(True)
    figure.legend(loc="upper center", ncols=count, fontsize=8, frameon=False)
