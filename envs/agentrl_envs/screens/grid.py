"""A grid world that is only ever shown as a picture: move, look, pick.

    env:
      target: agentrl_envs.screens:ScreenTask
    dataset:
      source: agentrl_envs.screens:make_tasks

The words of a task name what to pick up; where it lies, and where the player is, is in the picture
alone. So a policy that cannot see does no better than one that guesses a cell. Each cell is one
square of `CELL` pixels. Pillow draws, and is imported when the first picture is drawn.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError
from agentrl.images import message
from agentrl.types import Explanation, Message, Task
from agentrl_envs.screens.shared import blank_of, check_tasks, draw_tasks, drawn_level

_MODULE = "agentrl_envs.screens"

CELL = 28
"""Pixels of the side of a cell."""
MOVES: Mapping[str, tuple[int, int]] = {
    "up": (-1, 0),
    "down": (1, 0),
    "left": (0, -1),
    "right": (0, 1),
}
"""Rows and columns that a move goes."""
ACTIONS = (*MOVES, "look", "pick")
_COLORS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "green": (20, 150, 40),
    "yellow": (235, 195, 0),
    "purple": (140, 40, 170),
    "orange": (245, 130, 20),
}
_PLAYER, _WALL, _FLOOR, _LINE = (30, 80, 230), (70, 70, 70), (250, 250, 250), (200, 200, 200)
_HIDDEN = (0, 0, 0)
_WORD = re.compile(rf"\b({'|'.join(ACTIONS)})\b", re.IGNORECASE)
_LONGEST = 2000
"""Characters of a turn in which an action is looked for."""

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    size: int
    """Cells of a side."""
    things: int
    """Things that lie in the grid, each of another color."""
    walls: int
    """Most cells that are walls."""
    view: int | None = None
    """Cells around the player that are seen without `look`; None sees all."""
    picks: int = 1
    """Things to pick up, in the order of the task."""


LEVELS: Mapping[int, _Level] = {
    1: _Level(size=3, things=1, walls=0),
    2: _Level(size=4, things=2, walls=0),
    3: _Level(size=5, things=3, walls=4),
    4: _Level(size=6, things=4, walls=7, view=1),
    5: _Level(size=7, things=5, walls=10, view=1, picks=2),
}
"""Difficulty: larger grids, other things beside the right one, walls, fog, two things in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    size: int
    start: Cell
    walls: frozenset[Cell]
    things: Mapping[str, Cell]
    """By color."""
    wanted: Sequence[str]
    """Colors to pick up, in order."""
    view: int | None

    def free(self, cell: Cell) -> bool:
        """True for a cell that the player may stand on."""
        return all(0 <= at < self.size for at in cell) and cell not in self.walls


class ScreenTask(AgentInstance):
    """Steer a player to a thing and pick it up, seeing a picture after every turn.

    A turn is one word of `ACTIONS`; the first one in the text counts. Picking up a wrong thing, or
    where nothing lies, ends the episode without reward, so nothing is gained by trying every cell.

    Args:
        turns_per_cell: turns for each cell of a side; the episode ends after that many.
        blank: show white pictures of the same size, as a control: nothing can be learned then.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, turns_per_cell: int = 4, blank: bool = False) -> None:
        if turns_per_cell < 1:
            raise ConfigError(f"ScreenTask needs turns_per_cell >= 1, got {turns_per_cell}")
        self._turns_per_cell = turns_per_cell
        self._blank = blank

    async def reset(self, task: Task) -> Observation:
        """Show the grid, and name what to pick up.

        Raises:
            ValueError: the task has no level and seed in its metadata.
        """
        self._world = _world_of(task)
        self._cell = self._world.start
        self._left = self._turns_per_cell * self._world.size
        self._picked = 0
        self._lost = self._looked = 0
        return Observation(content=(self._shown(str(task.prompt)),))

    async def step(self, action: Action) -> StepResult:
        """Do the turn's action; the episode ends with the last pick or a wrong one."""
        world = self._world
        self._left -= 1
        found = _WORD.search(action.text[:_LONGEST])
        word = "" if found is None else found[0].lower()
        said, whole = "", False
        if word in MOVES:
            rows, columns = MOVES[word]
            target = self._cell[0] + rows, self._cell[1] + columns
            if world.free(target):
                self._cell = target
            else:
                said = "Something is in the way. "
        elif word == "look":
            self._looked += 1
            whole = True
        elif word == "pick":
            if world.things[world.wanted[self._picked]] != self._cell:
                return self._end(False, f"It picked at {self._cell}, where the thing does not lie.")
            self._picked += 1
            if self._picked == len(world.wanted):
                return self._end(True, "It picked up all that was asked for.")
            said = "Picked up. "
        else:
            self._lost += 1
            said = f"Say one of: {', '.join(ACTIONS)}. "
        if self._left <= 0 or action.last:
            return self._end(False, "It used all its turns.")
        return StepResult(environment_feedback=(self._shown(said + "What next?", whole=whole),))

    def solution(self, task: Task) -> list[str]:
        """The shortest walk to each thing that is asked for, and its pick."""
        world = _world_of(task)
        cell, turns = world.start, list[str]()
        for color in world.wanted:
            turns += [*(_walk(world, cell, world.things[color]) or ()), "pick"]
            cell = world.things[color]
        return turns

    def _end(self, solved: bool, reason: str) -> StepResult:
        return StepResult(
            rewards=float(solved),
            done=True,
            scores=float(solved),
            extra_logs={
                "solved": float(solved),
                "no_action": float(self._lost),
                "looks": float(self._looked),
            },
            explanation=Explanation(
                reference=" ".join(f"{color} at {cell}" for color, cell in self._wanted()),
                reason=reason,
            ),
        )

    def _wanted(self) -> list[tuple[str, Cell]]:
        return [(color, self._world.things[color]) for color in self._world.wanted]

    def _shown(self, text: str, *, whole: bool = False) -> Message:
        picked = self._world.wanted[: self._picked]
        picture = _draw(self._world, self._cell, picked, whole=whole)
        return message("user", [blank_of(picture) if self._blank else picture, text])


def make_tasks(
    split: str = "train", n: int = 256, seed: int = 0, levels: Sequence[int] = (1,)
) -> list[Task]:
    """Draw grids; the same arguments give the same ones on every machine.

    Args:
        split: any name; two of them share no grid but by chance.
        n: how many, over the levels in turn.
        seed: draws them.
        levels: of `LEVELS`.

    Raises:
        ConfigError: an unknown level, or n below 1.
    """
    check_tasks(_MODULE, n=n, levels=levels, known=LEVELS)
    return draw_tasks("screen", _asked, split=split, n=n, seed=seed, levels=levels)


def _asked(level: int, seed: str) -> tuple[str, None]:
    world = _draw_world(level=level, seed=seed)
    wanted = " and then to ".join(f"the {color} thing" for color in world.wanted)
    return (
        f"You are the blue circle. Go to {wanted} and pick it up. Say one word: "
        f"{', '.join(ACTIONS)}.",
        None,
    )


def _world_of(task: Task) -> _World:
    level, seed = drawn_level(task, _MODULE, LEVELS)
    return _draw_world(level=level, seed=seed)


def _draw_world(*, level: int, seed: str) -> _World:
    """A grid in which every thing can be reached."""
    rules, draw = LEVELS[level], Random(seed)
    cells = [(row, column) for row in range(rules.size) for column in range(rules.size)]
    while True:
        draw.shuffle(cells)
        start, *rest = cells
        colors = draw.sample(list(_COLORS), rules.things)
        things = dict(zip(colors, rest, strict=False))
        walls = frozenset(rest[rules.things : rules.things + rules.walls])
        world = _World(
            size=rules.size,
            start=start,
            walls=walls,
            things=things,
            wanted=colors[: rules.picks],
            view=rules.view,
        )
        if all(_walk(world, start, cell) is not None for cell in things.values()):
            return world


def _walk(world: _World, start: Cell, goal: Cell) -> list[str] | None:
    """The moves of a shortest walk; None where walls forbid any."""
    came: dict[Cell, tuple[Cell, str]] = {start: (start, "")}
    waiting = deque([start])
    while waiting and goal not in came:
        cell = waiting.popleft()
        for word, (rows, columns) in MOVES.items():
            target = cell[0] + rows, cell[1] + columns
            if world.free(target) and target not in came:
                came[target] = (cell, word)
                waiting.append(target)
    if goal not in came:
        return None
    moves: list[str] = []
    while goal != start:
        goal, word = came[goal]
        moves.append(word)
    return moves[::-1]


def _draw(world: _World, player: Cell, picked: Sequence[str], *, whole: bool) -> Any:
    """The picture of the grid, in fog beyond the view unless `whole`."""
    from PIL import Image, ImageDraw

    side = world.size * CELL
    picture = Image.new("RGB", (side, side), _FLOOR)
    pen = ImageDraw.Draw(picture)
    for row in range(world.size):
        for column in range(world.size):
            far = max(abs(row - player[0]), abs(column - player[1]))
            hidden = not whole and world.view is not None and far > world.view
            box = _box((row, column), 0)
            color = _HIDDEN if hidden else _WALL if (row, column) in world.walls else _FLOOR
            pen.rectangle(box, fill=color, outline=_LINE)
            for name, cell in world.things.items():
                if cell == (row, column) and name not in picked and not hidden:
                    pen.rectangle(_box(cell, 6), fill=_COLORS[name])
    pen.ellipse(_box(player, 8), fill=_PLAYER)
    return picture


def _box(cell: Cell, margin: int) -> tuple[int, int, int, int]:
    top, left = cell[0] * CELL, cell[1] * CELL
    return left + margin, top + margin, left + CELL - 1 - margin, top + CELL - 1 - margin
