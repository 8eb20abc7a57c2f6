"""Tensors that nobody has read yet, and the steps by which `transformers` makes weights of them.

A checkpoint goes into `transformers` as `Promised` tensors, which say their shape and dtype and
hold no numbers. Whatever it does with them while it loads (names, casts, the matrices of all
experts in one, halves divided or turned) is written down as a `TensorRecipe`. Any rows of a weight
are then made by the same steps from the parts of the file that they need, with the same bits as a
load of everything; a step that cannot be cut is done on the whole of that one tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

_ops: Any = torch.ops.aten
_NUMBER_BY_NUMBER = (_ops._to_copy, _ops.clone, _ops.detach, _ops.alias, _ops.lift_fresh)
_MARKED = 64
"""Numbers of a stored tensor that are looked at to tell it from another."""
_LOOKED_AT = 1 << 22
"""Numbers that are compared at a time."""


class Unpromised(Exception):
    """A step that needs numbers, or changes them in place; `transformers` may swallow it."""


class TensorRecipe(ABC):
    """The way to a tensor."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        """Shape, dtype and strides, on the meta device."""

    @abstractmethod
    def part(self, axis: int, start: int, stop: int) -> Tensor:
        """The tensor from `start` to `stop` along an axis; may share memory with the file."""

    @abstractmethod
    def whole(self) -> Tensor:
        """All of the tensor."""

    @abstractmethod
    def stored(self) -> Iterator[StoredTensor]:
        """The tensors of the files that it is made from."""


class StoredTensor(TensorRecipe):
    """A tensor as it lies in a file."""

    def __init__(self, name: str, slices: Any, refused: list[str] | None = None) -> None:
        """Take a tensor of a file that is mapped into memory.

        Args:
            name: in the file.
            slices: reads what it is indexed with; a slice of safetensors, or a mapped tensor.
            refused: gets the steps that no recipe can have; one list for a checkpoint.
        """
        shape = tuple(slices.shape) if isinstance(slices, Tensor) else tuple(slices.get_shape())
        first = slices[:0] if shape else slices[...]
        super().__init__(torch.empty(shape, dtype=first.dtype, device="meta"))
        self.name = name
        """In the file."""
        self.refused: list[str] = [] if refused is None else refused
        """Steps that no recipe can have."""
        self._slices = slices

    def part(self, axis: int, start: int, stop: int) -> Tensor:
        """`part` as in `TensorRecipe.part`."""
        return self._slices[(*[slice(None)] * axis, slice(start, stop))]

    def whole(self) -> Tensor:
        """`whole` as in `TensorRecipe.whole`."""
        return self._slices[...]

    def stored(self) -> Iterator[StoredTensor]:
        """`stored` as in `TensorRecipe.stored`."""
        yield self

    def mark(self) -> int:
        """Sum of the bits of some numbers in the middle: tells this tensor from one of another."""
        rows = self.like.shape[0] if self.like.ndim else 0
        found = self.part(0, rows // 2, rows // 2 + 1) if rows else self.whole()
        few = found.flatten()[:_MARKED].contiguous()
        return int(few.view(torch.uint8).to(torch.int64).dot(torch.arange(1, 1 + few.nbytes)))


class MadeTensor(TensorRecipe):
    """A tensor that one operation of torch makes of others."""

    def __init__(
        self, like: Tensor, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], index: int
    ) -> None:
        """Write a step down.

        Args:
            like: result, on the meta device.
            func: the operation.
            args: its arguments, with recipes for tensors.
            kwargs: likewise.
            index: of the result among all that `func` gives.
        """
        super().__init__(like)
        self._func, self._args, self._kwargs = func, tuple(args), dict(kwargs)
        self._index = index

    def part(self, axis: int, start: int, stop: int) -> Tensor:
        """`part` as in `TensorRecipe.part`."""
        if start >= stop:
            shape = list(self.like.shape)
            shape[axis] = 0
            return torch.empty(shape, dtype=self.like.dtype)
        if (found := self._cut(axis, start, stop)) is not None:
            return found
        return self.whole().narrow(axis, start, stop - start)

    def whole(self) -> Tensor:
        """`whole` as in `TensorRecipe.whole`."""
        return self._made(lambda recipe: recipe.whole())

    def stored(self) -> Iterator[StoredTensor]:
        """`stored` as in `TensorRecipe.stored`."""
        for found in tree_flatten((self._args, self._kwargs))[0]:
            if isinstance(found, TensorRecipe):
                yield from found.stored()

    def _made(self, read: Callable[[TensorRecipe], Tensor], *args: Any) -> Tensor:
        """The result of the step on what is read of its tensors."""
        args, kwargs = tree_map(
            lambda found: read(found) if isinstance(found, TensorRecipe) else found,
            (args or self._args, self._kwargs),
        )
        return tree_flatten(self._func(*args, **kwargs))[0][self._index]

    def _cut(self, axis: int, start: int, stop: int) -> Tensor | None:
        """The part by the same step on parts; None where the step is not known."""

        def read(recipe: TensorRecipe) -> Tensor:
            return recipe.part(axis, start, stop)

        step, (first, *others) = self._func.overloadpacket, self._args
        if step in _NUMBER_BY_NUMBER:
            return self._made(read)
        along = self._kwargs.get("dim", next((a for a in others if isinstance(a, int)), 0))
        if step is _ops.stack:
            along %= self.like.ndim
            if along == axis:
                return self._made(lambda recipe: recipe.whole(), first[start:stop], along)
            inner = axis - (along < axis)
            return self._made(lambda recipe: recipe.part(inner, start, stop))
        if step is _ops.cat:
            if along % self.like.ndim != axis:
                return self._made(read)
            return torch.cat(list(_overlapping(first, axis, start, stop)), dim=axis)
        if step is _ops.transpose:
            one, other = (number % self.like.ndim for number in others)
            inner = {one: other, other: one}.get(axis, axis)
            return self._made(lambda recipe: recipe.part(inner, start, stop))
        if step in (_ops.split, _ops.split_with_sizes):
            along = (others[1] if len(others) > 1 else self._kwargs.get("dim", 0)) % self.like.ndim
            if along != axis:
                return self._made(read)
            sizes = others[0]
            before = sizes * self._index if isinstance(sizes, int) else sum(sizes[: self._index])
            return first.part(axis, before + start, before + stop)
        return None


def _overlapping(
    parts: Sequence[TensorRecipe], axis: int, start: int, stop: int
) -> Iterator[Tensor]:
    """What lies between `start` and `stop` of tensors one behind the other."""
    for recipe in parts:
        size = recipe.like.shape[axis]
        if start < size and stop > 0:
            yield recipe.part(axis, max(start, 0), min(stop, size))
        start, stop = start - size, stop - size


class Promised(Tensor):
    """A tensor of a model that is being loaded, without numbers, and the recipe for them."""

    recipe: TensorRecipe
    """The way to its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls, recipe: TensorRecipe) -> Promised:
        """A tensor of the CPU by its looks, so that what loads it needs no other way."""
        like = recipe.like
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            like.shape,
            strides=like.stride(),
            dtype=like.dtype,
            device=torch.device("cpu"),
        )
        made.recipe = recipe
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Promised:
        # `transformers` copies what it is given; there is nothing here that could change.
        return self

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Write the operation down."""
        kwargs = kwargs or {}
        if func.overloadpacket is _ops.equal:
            return _are_equal(*args)
        moved = {"device": "meta"} if "device" in kwargs else {}
        shaped_args, shaped = tree_map(_shape_of, (args, {**kwargs, **moved}))
        try:
            if func._schema.is_mutable:
                raise Unpromised(str(func))
            out, spec = tree_flatten(func(*shaped_args, **shaped))
        except (Unpromised, NotImplementedError, RuntimeError) as error:  # it asks for a number
            every = tree_flatten((args, kwargs))[0]
            first = next(found for found in every if isinstance(found, Promised))
            next(first.recipe.stored()).refused.append(str(func))
            raise Unpromised(str(func)) from error
        given: tuple[Any, dict[str, Any]] = tree_map(_recipe_of, (args, kwargs))
        made = [
            cls(MadeTensor(one, func, *given, index)) if isinstance(one, Tensor) else one
            for index, one in enumerate(out)
        ]
        return tree_unflatten(made, spec)


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Look at the numbers, a few at a time: are the weights the same that a config has tied?"""
    if one.shape != other.shape:
        return False
    if not one.ndim:
        return torch.equal(*map(_numbers, (one, other)))
    step = max(1, _LOOKED_AT // max(1, one.numel() // max(1, len(one))))
    return all(
        torch.equal(*(_numbers(each, start, min(len(one), start + step)) for each in (one, other)))
        for start in range(0, len(one), step)
    )


def _numbers(found: Tensor, *rows: int) -> Tensor:
    if isinstance(found, Promised):
        return found.recipe.part(0, *rows) if rows else found.recipe.whole()
    return found[slice(*rows)] if rows else found


def _shape_of(found: Any) -> Any:
    if isinstance(found, Promised):
        return found.recipe.like
    return found.to("meta") if isinstance(found, Tensor) else found


def _recipe_of(found: Any) -> Any:
    return found.recipe if isinstance(found, Promised) else found
