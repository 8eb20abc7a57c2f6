"""Text of a run as a terminal may show it: no control sequence in it has an effect."""

from __future__ import annotations

import re

from rich.text import Text

_SUSPECT = re.compile(r"[^\n\t -~]")
_NAMED = {"\r": "\\r", "\x00": "\\0", "\x1b": "\\e"}


def visible(text: str, style: str = "") -> Text:
    """Text with every character that does not print spelled out, such as `\\e` or `\\u202e`.

    Example:
        >>> visible("\\x1b[31mred").plain
        '\\\\e[31mred'
    """
    pieces: list[str | tuple[str, str]] = []
    start = 0
    for match in _SUSPECT.finditer(text):
        if match[0].isprintable() or match[0] == "\xa0":
            continue
        pieces += [text[start : match.start()], (_spelled(match[0]), "reverse")]
        start = match.end()
    return Text.assemble(*pieces, text[start:], style=style)


def number(value: float | None, *, sign: bool = False) -> str:
    """A number as the views show it, with three significant digits; `-` where
    there is none.

    Example:
        >>> number(0.4), number(20480.0), number(0.0469, sign=True)
        ('0.400', '20480', '+0.0469')
    """
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{value:+.0f}" if sign and value else f"{value:.0f}"
    text = f"{value:+#.3g}" if sign else f"{value:#.3g}"
    return text.removesuffix(".")


def _spelled(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
