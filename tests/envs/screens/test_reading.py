"""Charts and tables: the expert is paid, who does not read is not, and zooming shows more."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from agentrl_envs.screens.reading import LEVELS, ReadingTask, make_tasks
from agentrl_envs.screens.reading.draw import HEIGHT, WIDTH, sheet_picture
from agentrl_envs.screens.reading.env import is_answer
from agentrl_envs.screens.reading.sheets import NAMES, draw_sheet

from agentrl.errors import ConfigError
from tests.envs.screens.episodes import call, play


@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_is_paid_and_sees_what_it_needs(level: int) -> None:
    for task in make_tasks(n=2, levels=[level]):
        turns = ReadingTask().solution(task)
        played = await play(ReadingTask(), task, turns)
        assert (played.reward, played.score, played.turns) == (1.0, 1.0, len(turns))
        assert len(played.images) == len(turns)  # the first picture, and one of each zoom
        assert all(image.width <= WIDTH and image.height <= HEIGHT for image in played.images)
        # Only what is drawn smaller than it is shown needs a look at its parts.
        assert (len(turns) > 1) == (LEVELS[level].shrink > 1)


CHEATERS = {
    "says nothing": [""] * 9,
    "answers in words": ["Answer: {label}"] * 9,
    "zooms for ever": [call("zoom", x=0, y=0, w=9, h=9)] * 9,
    "names all": [call("answer", value=" ".join(NAMES))],
    "names two": [call("answer", value="{label} or 1")],
    "is equal to everything": [call("answer", value="nan")],
    "is a formula": [call("answer", value="0+{label}")],
    "hides it": [call("answer", value=" " * 1000 + "{label}")],
    "tries two": [[call("answer", value="no"), call("answer", value="{label}")]],
    "claims to be right": [call("answer", value="the right one")],
}


@pytest.mark.parametrize("name", CHEATERS)
async def test_nothing_is_paid_without_the_answer(name: str) -> None:
    for task in make_tasks(n=4):
        turns = [
            [replace(one, arguments=_filled(one.arguments, task.label)) for one in turn]
            if isinstance(turn, list)
            else turn.format(label=task.label)
            if isinstance(turn, str)
            else replace(turn, arguments=_filled(turn.arguments, task.label))
            for turn in CHEATERS[name]
        ]
        played = await play(ReadingTask(), task, turns)
        assert (played.done, played.reward, played.score) == (True, 0.0, 0.0)


def _filled(arguments, label):
    return {
        key: value.format(label=label) if isinstance(value, str) else value
        for key, value in arguments.items()
    }


def test_no_constant_is_often_right() -> None:
    for level in LEVELS:
        labels = [task.label for task in make_tasks(n=200, levels=[level])]
        assert max(labels.count(label) for label in labels) < 0.2 * len(labels)


def test_an_answer_is_a_number_by_value_or_a_name() -> None:
    assert all(is_answer(said, "35") for said in ("35", " 35. ", "+35", "35.0", "'35'"))
    assert is_answer("ADA", "Ada")
    assert not any(
        is_answer(said, "35") for said in ("3", "353", "3_5", "0x23", "35 40", "\u0663\u0665", "")
    )


def test_questions_have_one_answer_and_lines_hide_no_other() -> None:
    for seed, level in itertools.product(range(30), LEVELS):
        sheet = draw_sheet(level=level, seed=str(seed))
        assert sheet == draw_sheet(level=level, seed=str(seed))
        assert all(len(set(column)) == len(column) for column in sheet.values)
        assert all(len(set(line)) == len(line) for line in zip(*sheet.values, strict=True))
        if not sheet.answer.isdigit():
            assert sheet.answer in sheet.names


async def test_a_picture_is_a_value_and_the_words_say_nothing() -> None:
    first, second = make_tasks(n=2)
    assert first.label not in first.prompt
    one, again, other = [
        (await play(ReadingTask(), task, [])).images[0].digest for task in (first, first, second)
    ]
    assert one == again
    assert one != other
    blank = [(await play(ReadingTask(blank=True), task, [])).images for task in (first, second)]
    assert blank[0] == blank[1]
    assert (blank[0][0].width, blank[0][0].height) == (WIDTH, HEIGHT)


def test_a_bar_is_as_high_as_its_value() -> None:
    # Of the drawing itself: the picture and the answer come from the same numbers.
    sheet = draw_sheet(level=1, seed="0")
    (values,) = sheet.values
    picture = sheet_picture(sheet)

    def is_bar(x: int, y: int) -> bool:
        red, _, blue = picture.getpixel((x, y))
        return red < 60 and blue > 150

    # Just above the axis every bar is one run of its color.
    runs = [
        [x for x, _ in run]
        for found, run in itertools.groupby(
            ((x, is_bar(x, HEIGHT * 85 // 100)) for x in range(WIDTH)), lambda pair: pair[1]
        )
        if found
    ]
    assert len(runs) == len(values)
    # Below the legend.
    heights = [sum(is_bar(run[len(run) // 2], y) for y in range(30, HEIGHT)) for run in runs]
    per_unit = [height / value for height, value in zip(heights, values, strict=True)]
    assert max(per_unit) - min(per_unit) < 0.1 * max(per_unit)


@pytest.mark.parametrize(
    "part",
    [
        {"x": -1, "y": 0, "w": 5, "h": 5},
        {"x": 0, "y": 0, "w": 0, "h": 5},
        {"x": 300, "y": 0, "w": 300, "h": 5},
        {"x": 0, "y": 10**400, "w": 5, "h": 5},
    ],
)
async def test_a_part_beside_the_picture_is_an_answer_to_the_model(part) -> None:
    (task,) = make_tasks(n=1)
    played = await play(ReadingTask(), task, [call("zoom", **part)])
    assert "which is 336 wide and 252 high" in played.texts[1]
    assert len(played.texts[1]) < 200
    assert not played.done


def test_an_unknown_level_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"reading: .*levels among \[1, 2, 3, 4, 5\]"):
        make_tasks(levels=[6])
    with pytest.raises(ConfigError, match="turns >= 1, got 0"):
        ReadingTask(turns=0)
