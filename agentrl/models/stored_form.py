"""Weights of a model in the form of its files; imports no torch."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class StoredForm:
    """Weights of a `transformers` model in the form of its files: other names, other tensors.

    `transformers` renames weights of many models while it loads them, puts the matrices of all
    experts into one tensor, and divides or joins others. It saves the form of the files again,
    which is the one that every other program reads. This converts as it does, a stream at a time.
    """

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        """Find the form.

        Args:
            model: a `transformers` model.
            names: of all weights that will come, in the model.
        """
        from transformers.core_model_loading import (
            WeightConverter,
            dot_natural_key,
            rename_source_key,
        )

        self._model = model
        reverse = _reverse_conversions(model)
        converters = [one for one in reverse if isinstance(one, WeightConverter)]
        renamings = [one for one in reverse if not isinstance(one, WeightConverter)]
        by_pattern = {key: one for one in converters for key in one.source_patterns}
        self._names: dict[str, tuple[str, str | None]] = {}
        for name in sorted(names, key=dot_natural_key) if reverse else ():
            self._names[name] = rename_source_key(name, renamings, converters, reverse=True)
        self._converters = by_pattern
        self._parts = Counter(key for key, pattern in self._names.values() if pattern is not None)

    def renamed(self, name: str) -> str | None:
        """The name in the files; None for a weight that is stored as other tensors."""
        stored, pattern = self._names.get(name, (name, None))
        return stored if pattern is None else None

    def __call__(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The stream in the form of the files; holds what is joined there until all of it came."""
        waiting: dict[str, Any] = {}
        seen: Counter[str] = Counter()
        for name, tensor in weights:
            stored, pattern = self._names.get(name, (name, None))
            if pattern is None:
                yield stored, tensor
                continue
            if stored not in waiting:
                waiting[stored] = copy.deepcopy(self._converters[pattern])
            waiting[stored].add_tensor(stored, name, pattern, tensor)
            seen[stored] += 1
            if seen[stored] == self._parts[stored]:
                found = waiting.pop(stored).convert(
                    stored, model=self._model, config=self._model.config
                )
                for key, value in found.items():
                    yield key, value[0] if isinstance(value, list) else value
        assert not waiting, f"weights ended before all parts of {min(waiting)} had come"


def _reverse_conversions(model: Any) -> list[Any]:
    """The steps of transformers' own `revert_weight_conversion`, as its `save_pretrained` does."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    steps = getattr(model, "_weight_conversions", None)
    if steps is None:
        known = get_model_conversion_mapping(model, add_legacy=False)
        steps = [step for step in known if not isinstance(step, PrefixChange)]
    return [step.reverse_transform() for step in reversed(steps)]
