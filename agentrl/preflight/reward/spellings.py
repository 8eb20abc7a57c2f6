"""Ways to write an answer down, so that it is found in a prompt however it stands there. Pure."""

from __future__ import annotations

import base64
import codecs
import re
import unicodedata

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_FEWEST = 3
"""Characters below which an answer in another alphabet, or turned round, is no evidence."""


def normal(text: str) -> str:
    """Text as it is searched: compatibility forms, no invisible characters, lower case."""
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()


def plain_pattern(answer: str) -> re.Pattern[str]:
    """Finds an answer as such in normal text, and a number in any usual form.

    Example:
        >>> bool(plain_pattern("1234").search(normal("It is 1,234.00.")))
        True
        >>> bool(plain_pattern("12").search("12.5 or 312"))
        False
    """
    words = normal(answer).split()
    forms = [r"\s+".join(map(re.escape, words))]
    number = _number(answer)
    if number is not None:
        whole = str(abs(number))
        grouped = rf"{abs(number):,}"
        forms += [rf"(?:{re.escape(form)})(?:\.0+)?" for form in {whole, grouped}]
        if number < 0:
            forms = [forms[0], *(rf"[-\u2212]\s?{form}" for form in forms[1:])]
        elif (spoken := _spoken(number)) is not None:
            forms.append(spoken)
    before = r"(?<!\w)(?<!\d[.,])" + ("" if number is None or number < 0 else r"(?<![-\u2212])")
    return re.compile(rf"{before}(?:{'|'.join(forms)})(?!\w)(?![.,]\d)")


def coded_patterns(answer: str) -> dict[str, re.Pattern[str]]:
    """Finds an answer in other alphabets in normal text, by the name of each."""
    text = answer.strip()
    data = text.encode()
    coded = {
        "base64": base64.b64encode(data).decode().rstrip("="),
        "hexadecimal": data.hex(),
        "rot13": codecs.encode(text, "rot13") if text.isalpha() else "",
        "backwards": text[::-1] if text[::-1] != text else "",
        "with spaces": " ".join(text) if " " not in text else "",
    }
    return {
        name: re.compile(rf"(?<!\w){re.escape(normal(code))}(?!\w)")
        for name, code in coded.items()
        if len(code) >= _FEWEST or (code and name == "backwards" and len(code) > 1)
    }


def _number(answer: str) -> int | None:
    """The whole number that an answer is; None for anything else."""
    try:
        value = float(answer.strip().replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) < 1e15 else None


def _spoken(number: int) -> str | None:
    if number < len(_ONES):
        return _ONES[number]
    if number >= 100:
        return None
    tens, ones = _TENS[number // 10 - 2], number % 10
    return rf"{tens}[\s-]?{_ONES[ones]}" if ones else tens
