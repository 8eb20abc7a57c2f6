"""Reading, bounding and joining the explanations that environments and reward functions give.

An explanation is stored with every rollout, so each of its texts has a limit of size. The beginning
of a grader's output says what ran and its end says how it went, so the middle is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from agentrl.errors import choices, shortened
from agentrl.types import Explanation

MOST_CHARS = 16_000
"""Characters of each text that are stored, the mark of what is left out included."""
FIELDS = tuple(field.name for field in fields(Explanation))
"""Names of the texts."""


def read_explanation(value: Any) -> Explanation | None:
    """An explanation within its limits, from a record, from a dictionary, or from None.

    Example:
        >>> read_explanation({"reference": "36"}).reference
        '36'

    Raises:
        ValueError: it is neither, or a field is unknown or holds no text; names the field.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        unknown = next((key for key in value if key not in FIELDS), None)
        if unknown is not None:
            raise ValueError(f"explanation has an unknown field: {choices(str(unknown), FIELDS)}")
        value = Explanation(**value)
    elif not isinstance(value, Explanation):
        raise ValueError(
            f"explanation is {_kind(value)}, expected Explanation(...) or a dictionary with some "
            f"of {', '.join(FIELDS)}"
        )
    texts = {name: getattr(value, name) for name in FIELDS}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(
                f"explanation.{name} is {_kind(text)}, expected text; give str(...) of it, or "
                "leave the field out"
            )
    if any(len(text) > MOST_CHARS for text in texts.values()):
        return replace(value, **{name: shortened(text) for name, text in texts.items()})
    return value if any(texts.values()) else None


def later(before: Explanation | None, after: Explanation | None) -> Explanation | None:
    """The explanation of several steps: of each text the last one that was given."""
    if before is None or after is None:
        return after or before
    given = {name: text for name in FIELDS if (text := getattr(after, name))}
    return replace(before, **given)


def joined(
    before: Explanation | None, named: Mapping[str, Explanation | None]
) -> Explanation | None:
    """The explanation of an environment with those of reward functions below it.

    The first reference counts; other texts stand one after the other, each below the name of its
    function.

    Args:
        before: of the environment.
        named: by name of the function.
    """
    texts = {name: getattr(before, name) if before else "" for name in FIELDS}
    for function, one in named.items():
        for name in FIELDS if one is not None else ():
            text = getattr(one, name)
            if name == "reference":
                texts[name] = texts[name] or text
            elif text:
                texts[name] = "\n\n".join(filter(None, (texts[name], f"{function}:\n{text}")))
    return read_explanation(texts)


def reference_of(label: Any) -> str:
    """The label of a task as text, where it is a text, a number or a list of these; else empty.

    Example:
        >>> reference_of(36), reference_of(["36", 36.5]), reference_of({"hidden": []})
        ('36', '36, 36.5', '')
    """
    if isinstance(label, str):
        return label
    if isinstance(label, (bool, int, float)):
        return str(label)
    if isinstance(label, (list, tuple)) and all(isinstance(one, _PLAIN) for one in label):
        return ", ".join(map(str, label))
    return ""


_PLAIN = (str, bool, int, float)


def _kind(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may raise anything; this is for reading only
        text = f"whose repr raised {type(error).__name__}"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
