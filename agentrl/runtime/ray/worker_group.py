"""Many actors as one object: a method declares how it is dispatched, the driver awaits one call.

    class Rank:                                   ranks = WorkerGroup(Rank, handles, name="rank")
        @dispatch(Mode.BROADCAST)
        async def learn(self, step): ...          bags = await ranks.learn(3)     all of them
        @dispatch(Mode.RANK_ZERO)
        async def save(self, folder): ...         await ranks.save(folder)        one of them

Everything that can be decided without Ray (how a batch is partitioned, how results are joined,
which actor has least to do) is plain and below; `WorkerGroup` only forwards.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from agentrl.errors import AgentrlError
from agentrl.metrics import MetricBag

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_MARK = "__agentrl_dispatch__"


class Mode(StrEnum):
    """Dispatch modes of a call: which workers get which arguments, and what comes back."""

    BROADCAST = "broadcast"
    """All actors, with the same arguments; a list of results by index."""
    SPLIT = "split"
    """All actors, each with a part of the first argument, a sequence; the results in one piece, in
    the order of the sequence. The parts are equally many items, or those of a `Divided`."""
    RANK_ZERO = "rank_zero"
    """The first actor; its result."""
    LEAST_LOADED = "least_loaded"
    """The actor with the fewest calls in flight; its result. With `returns=2` the first of the two,
    and a reference of the second, which stays where it was made."""


class ActorLost(AgentrlError):
    """An actor died, or its machine, while it was asked. The call may have had effects."""

    @property
    def index(self) -> int:
        """Index of the actor in its group."""
        return self.args[1]

    def __str__(self) -> str:
        return str(self.args[0])


def dispatch(mode: Mode, *, returns: int = 1) -> Callable[[F], F]:
    """Declare how a method of an actor class is called through a `WorkerGroup`.

    Args:
        mode: which actors are called.
        returns: results that the method returns as a tuple, each an object of its own.
    """

    def mark(method: F) -> F:
        setattr(method, _MARK, (mode, returns))
        return method

    return mark


def partition(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Consecutive parts whose lengths differ by at most one; the longer ones come first.

    Example:
        >>> partition([1, 2, 3, 4, 5], 3)
        [[1, 2], [3, 4], [5]]
    """
    if parts < 1:
        raise ValueError(f"a batch cannot be cut into {parts} parts, expected at least 1")
    size, longer = divmod(len(items), parts)
    ends = [index * size + min(index, longer) for index in range(parts + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(ends)]


class Divided(list[Sequence[Any]]):
    """A sequence in consecutive parts, one for each actor of a split call."""


def divide(items: Sequence[Any], weights: Sequence[int], parts: int) -> Divided:
    """Consecutive parts of about equal weight; with few items some are empty.

    Example:
        >>> divide("abcd", [5, 1, 2, 2], 2)
        ['a', 'bcd']
    """
    middles = [
        end - weight / 2 for end, weight in zip(itertools.accumulate(weights), weights, strict=True)
    ]
    total = sum(weights)
    inner = [bisect.bisect_left(middles, total * part / parts) for part in range(1, parts)]
    ends = [0, *inner, len(items)]
    return Divided(items[begin:end] for begin, end in itertools.pairwise(ends))


def join(results: Sequence[Any]) -> Any:
    """Results of a split call in one piece: bags merge, lists and tuples follow one another.

    Example:
        >>> join([[1, 2], [3]])
        [1, 2, 3]

    Raises:
        TypeError: something that cannot be joined, or different kinds.
    """
    kinds = {type(result) for result in results}
    if kinds == {MetricBag}:
        whole = MetricBag()
        for bag in results:
            whole.merge(bag)
        return whole
    if kinds in ({list}, {tuple}):
        return kinds.pop()(item for result in results for item in result)
    if kinds == {type(None)}:
        return None
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(
        f"a split call returned {names}; expected all lists, tuples, MetricBags or None"
    )


def least_loaded(in_flight: Sequence[int], usable: Sequence[bool]) -> int | None:
    """The usable index with the fewest calls in flight, the first of equals; None without one."""
    usable_indices = [index for index, ok in enumerate(usable) if ok]
    return min(usable_indices, key=lambda index: (in_flight[index], index), default=None)


class WorkerGroup:
    """Actors of one class, by index. Belongs to one event loop."""

    def __init__(self, actor_class: type, handles: Sequence[Any], *, name: str) -> None:
        """Take the actors.

        Args:
            actor_class: its methods say how they are dispatched.
            handles: Ray's; never empty.
            name: of one of them, for messages.
        """
        self.name = name
        self._class = actor_class
        self._handles = list(handles)
        self._in_flight = [0] * len(handles)
        self._usable = [True] * len(handles)

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def usable(self) -> list[int]:
        """Indices that `LEAST_LOADED` chooses from."""
        return [index for index, ok in enumerate(self._usable) if ok]

    def retire(self, index: int) -> None:
        """Give an actor no more calls, except by its index."""
        self._usable[index] = False

    def replace(self, index: int, handle: Any) -> None:
        """Replace an actor that is gone by a new one."""
        self._handles[index] = handle
        self._in_flight[index] = 0
        self._usable[index] = True

    def handle(self, index: int) -> Any:
        """Ray's handle of one actor."""
        return self._handles[index]

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        function = None if method.startswith("_") else getattr(self._class, method, None)
        if function is None or not hasattr(function, _MARK):
            raise AttributeError(
                f"{self._class.__name__} has no method {method!r} marked with @dispatch"
            )
        mode, returns = getattr(function, _MARK)

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._dispatch(mode, returns, method, args, kwargs)

        return call

    async def one(self, index: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call one actor by its index, whatever the mode.

        Raises:
            ActorLost: it died.
        """
        return await self._call(index, method, 1, args, kwargs)

    async def _dispatch(
        self, mode: Mode, returns: int, method: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if mode is Mode.RANK_ZERO:
            return await self._call(0, method, returns, args, kwargs)
        if mode is Mode.LEAST_LOADED:
            index = least_loaded(self._in_flight, self._usable)
            if index is None:
                raise ActorLost(f"no {self.name} is left", -1)
            return await self._call(index, method, returns, args, kwargs)
        all_actors = range(len(self._handles))
        if mode is Mode.BROADCAST:
            return await _all(self._call(i, method, returns, args, kwargs) for i in all_actors)
        first = args[0]
        parts = first if isinstance(first, Divided) else partition(first, len(self._handles))
        return join(
            await _all(
                self._call(i, method, returns, (parts[i], *args[1:]), kwargs) for i in all_actors
            )
        )

    async def _call(
        self, index: int, method: str, returns: int, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        handle = self._handles[index]
        self._in_flight[index] += 1
        try:
            return await ask(
                handle, method, *args, who=f"{self.name} {index}", returns=returns, **kwargs
            )
        except ActorLost as error:
            raise ActorLost(str(error), index) from error
        finally:
            if self._handles[index] is handle:
                self._in_flight[index] -= 1


async def ask(
    handle: Any, method: str, *args: Any, who: str, returns: int = 1, **kwargs: Any
) -> Any:
    """Call one method of one actor.

    Args:
        handle: Ray's.
        method: its name.
        args: positional.
        who: the actor, for messages.
        returns: as in `dispatch`.
        kwargs: by keyword.

    Raises:
        ActorLost: it died.
        AgentrlError, OSError: as raised there.
    """
    remote = getattr(handle, method)
    with _translated(who):
        if returns == 1:
            return await remote.remote(*args, **kwargs)
        first, *others = remote.options(num_returns=returns).remote(*args, **kwargs)
        return (await first, *others)


def ask_blocking(handle: Any, method: str, *args: Any, who: str, limit_s: float) -> Any:
    """As `ask`, for callers in any thread, that of the event loop included.

    Raises:
        ActorLost: it died, or did not answer within `limit_s`.
        AgentrlError: as raised there.
    """
    import ray
    from ray.exceptions import GetTimeoutError

    with _translated(who):
        try:
            return ray.get(getattr(handle, method).remote(*args), timeout=limit_s)
        except GetTimeoutError as error:
            raise ActorLost(f"{who} did not answer {method} within {limit_s:g} s", -1) from error


@contextlib.contextmanager
def _translated(who: str) -> Iterator[None]:
    """Ray's errors as ours: one that crossed is itself again; a dead actor is an `ActorLost`."""
    from ray.exceptions import RayActorError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        # Other errors keep the traceback of the other process.
        if isinstance(error.cause, AgentrlError | OSError):
            raise error.cause from None
        raise
    except RayActorError as error:
        text = " ".join(str(error).split())
        cause = text.partition("The actor is dead because ")[2] or text
        raise ActorLost(f"{who} is gone: {cause[:200]}", -1) from error


async def _all(calls: Any) -> list[Any]:
    """Await all calls; the first error ends the wait, since ranks that work together fail together.

    No call is cancelled: an actor works on, and the caller ends the actors.
    """
    return list(await asyncio.gather(*calls))
