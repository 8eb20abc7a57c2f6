"""Kinds of one thing by name: those that come with agentrl, and a user's own by import string.

A built-in kind and a user's are the same: an entry with what the kind declares about itself. Other
code asks an entry what it declares and never compares its name, so a new kind is one new file and
the line that imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentrl.errors import ConfigError, choices
from agentrl.plugins.imports import resolve

T = TypeVar("T")


class Registry(Generic[T]):
    """The kinds that one config key can name.

    Example:
        >>> shapes = Registry[type]("shape", own="a type", entry=lambda name, value: value)
        >>> shapes.add("text", str, source=str)
        >>> shapes.find("text"), shapes.find("pathlib:Path").__name__
        (<class 'str'>, 'Path')
    """

    def __init__(
        self, key: str, *, own: str, entry: Callable[[str, Any], T], words: tuple[str, ...] = ()
    ) -> None:
        """Make an empty registry.

        Args:
            key: the config key, for messages.
            own: what an import string in `key` has to name, for messages.
            entry: makes an entry of a name and the object that an import string names; raises
                `ConfigError` where the object is none of this kind.
            words: values of the key that are no kind, as `auto`; for messages.
        """
        self._key, self._own, self._entry, self._words = key, own, entry, words
        self._entries: dict[str, T] = {}
        self._sources: dict[str, str] = {}
        self._made_of: dict[object, T] = {}

    def __iter__(self) -> Iterator[str]:
        """The registered names, in the order in which they were added."""
        return iter(self._sources)

    def add(self, name: str, entry: T, *, source: object) -> None:
        """Register a kind under a name.

        Args:
            name: for the config.
            entry: what it declares.
            source: function or class that the entry is made of; it may be added again.

        Raises:
            ConfigError: another function or class has the name.
        """
        origin = _origin(source)
        have = self._sources.setdefault(name, origin)
        if have != origin:
            raise ConfigError(f"{self._key} {name!r} is {have} already; give {origin} another name")
        self._entries[name] = entry
        self._made_of[source] = entry

    def get(self, name: str | None) -> T | None:
        """The entry of a name that is registered or was found before; loads nothing."""
        return None if name is None else self._entries.get(name)

    def made_of(self, source: object) -> T | None:
        """The entry that was added of a function or class; None if there is none."""
        return self._made_of.get(source) if isinstance(source, Hashable) else None

    def find(self, name: str | None, *, base: Path | None = None) -> T:
        """The entry that a config names.

        Args:
            name: registered, or an import string.
            base: folder that relative file paths start from; needed at the first time only, since
                ranks and stages ask again without knowing where the config lies.

        Raises:
            ConfigError: there is no such kind; lists those there are.
        """
        # A file path means another file from another folder.
        if name in self._entries and not (base is not None and ":" in name):
            return self._entries[name]
        self.check(name)
        assert name is not None
        found = self._entries[name] = self._entry(name, resolve(name, base=base))
        return found

    def check(self, name: str | None, *, aliases: Iterable[str] = ()) -> None:
        """Refuse a name that is neither registered nor an import string; loads nothing.

        Args:
            name: as in a config, aliases replaced.
            aliases: other names that a config may have; for messages.

        Raises:
            ConfigError: lists the registered names.
        """
        if name is None or (name not in self._entries and ":" not in name):
            valid = choices(str(name), [*self, *self._words, *aliases])
            raise ConfigError(
                f"{self._key}: {valid}; {self._own} is named by an import string, "
                "package.module:NAME or path/to/file.py:NAME"
            )


def _origin(source: object) -> str:
    module = getattr(source, "__module__", "?")
    return f"{module}.{getattr(source, '__qualname__', repr(source))}"
