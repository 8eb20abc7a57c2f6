"""The list of keys: how many there are, and what each says of itself."""

from __future__ import annotations

from agentrl.config import leaves
from agentrl.config.keys import sections_at

KEYS = 203
"""Of all run files. It may fall."""
STANDING = 132
"""Of them those that a run file has whose kinds and optional sections are the default ones."""


def test_there_are_not_more_keys_than_there_were() -> None:
    """Prints the list if it grew: is one of these not needed, or part of a group?"""
    keys = list(leaves())
    standing = [
        key.name
        for key in keys
        if not key.optional and "NAME" not in key.name and (not key.kinds or _by_default(key.kinds))
    ]
    listed = "\n".join(key.name for key in keys)
    assert len(keys) <= KEYS, f"{len(keys)} keys:\n{listed}"
    listed = "\n".join(standing)
    assert len(standing) <= STANDING, f"{len(standing)} keys that always stand:\n{listed}"
    assert len({key.name for key in keys}) == len(keys)


def _by_default(kinds: tuple[str, ...]) -> bool:
    default = {key.name: key.default for key in leaves()}
    settings = (kind.split(": ") for kind in kinds)
    return any(default[name] in names.split(" or ") for name, names in settings)


def test_every_key_says_what_it_means() -> None:
    for key in leaves():
        assert len(key.meaning) > 10, f"{key.name} has no docstring"
        assert key.meaning.endswith("."), key.name


def test_dotted_places_lead_to_sections() -> None:
    assert [kind.__name__ for kind in sections_at(["eval", "datasets", "any name"])] == [
        "DatasetSection"
    ]
    assert [kind.__name__ for kind in sections_at(["sandbox", "limits"])] == [
        "LimitsSection",
        "ContainerLimits",
    ]
    assert sections_at(["train", "steps"]) == ()
    assert sections_at(["nowhere", "at", "all"]) == ()
