"""Text between two marks in what a model wrote, as `<answer>` and `</answer>`.

A pattern such as `<answer>(.*?)</answer>` reads on to the end of the text from each mark that is
never closed, so a megabyte of them takes minutes on the event loop. This reads each character once.
"""

from __future__ import annotations


def last_between(text: str, begin: str, end: str) -> str | None:
    """The last piece of `text` that stands between `begin` and `end`; None without one.

    Pieces are those of `re.findall(f"{begin}(.*?){end}", text, re.DOTALL)`.

    Example:
        >>> last_between("<a>1</a> or <a><a>2</a>, <a>3", "<a>", "</a>")
        '<a>2'
    """
    found = None
    opened = text.find(begin)
    while opened >= 0:
        start = opened + len(begin)
        closed = text.find(end, start)
        if closed < 0:
            break
        found = (start, closed)
        opened = text.find(begin, closed + len(end))
    return None if found is None else text[found[0] : found[1]]
