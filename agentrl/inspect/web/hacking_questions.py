"""Questions about a hacked reward, as the page asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrl.inspect.pages.hacking.answer import hacking_answer
from agentrl.inspect.pages.hacking.clusters import clusters_answer
from agentrl.inspect.web.library import Library
from agentrl.inspect.web.request_parameters import required, steps_or_none, whole_or_none


def _hacking(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    return hacking_answer(reader, query.get("kind") or "train", whole_or_none(query, "step"))


def _clusters(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    return clusters_answer(reader, query.get("kind") or "train", steps_or_none(query, "steps"))


HACKING_ANSWERS: Mapping[str, Callable[[Library, Mapping[str, str]], Any]] = {
    "hacking": _hacking,
    "clusters": _clusters,
}
"""Name of a question to what answers it."""
