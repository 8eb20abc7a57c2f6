"""The ranking judge: both orders, parts in which all meet, ties, and rollouts of a real worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.errors import ConfigError, ServedModelError
from agentrl.judges.places import parts_in_which_all_meet, scores_of, shuffled
from agentrl.judges.ranking import check_ranking, ranking_judge
from agentrl.reward import load_reward_functions
from tests.judges.scripted_judges import TASK, echo_all, mark_in, part_of, row
from tests.served.scripted_server import scripted_server

Order = Callable[[Sequence[str]], list[int]]


def works_in(body: dict[str, Any]) -> list[str]:
    count = body["messages"][-1]["content"].count("\nBEGIN work ")
    return [part_of(body, f"work {number}") for number in range(1, count + 1)]


def judge(order: Order) -> Callable[[dict[str, Any]], str]:
    """A judge that ranks works by their texts."""

    def reply(body: dict[str, Any]) -> str:
        ranking = order(works_in(body))
        return json.dumps({"case": mark_in(body), "reason": "as seen", "ranking": ranking})

    return reply


def shortest_first(works: Sequence[str]) -> list[int]:
    return sorted(range(1, len(works) + 1), key=lambda number: (len(works[number - 1]), number))


async def ranked(url: str, *works: str, **more: Any) -> list[float]:
    rows = [(row(work),) for work in works]
    model = {"url": url, "model": "m", "tries": 1}
    values = await ranking_judge(
        [own[-1] for own in rows], TASK, rows=rows, model=model, standard="The shorter one.", **more
    )
    return [value.value for value in values]


async def test_the_best_has_one_and_the_last_nothing() -> None:
    async with scripted_server(always=judge(shortest_first)) as server:
        assert await ranked(server.url, "bb", "a", "dddd", "ccc") == pytest.approx(
            [2 / 3, 1.0, 0.0, 1 / 3]
        )
    first, second = (works_in(body) for body in server.asked)
    assert first == second[::-1], "each work stands before each other one once"
    assert len(server.asked) == 2


async def test_works_in_another_order_are_the_same_prompts() -> None:
    """Fails if the place of a rollout in its group decides where it is shown."""
    async with scripted_server(always=judge(shortest_first)) as server:
        await ranked(server.url, "bb", "a", "ccc")
        await ranked(server.url, "ccc", "bb", "a")
    said = [body["messages"][-1]["content"] for body in server.asked]
    assert len(said) == 4
    assert len(set(said)) == 2


@pytest.mark.parametrize("last_first", [False, True])
async def test_a_judge_of_places_gives_ties(last_first: bool) -> None:
    """Fails if only one order is asked: the work that stands first would win."""

    def places(works: Sequence[str]) -> list[int]:
        numbers = list(range(1, len(works) + 1))
        return numbers[::-1] if last_first else numbers

    async with scripted_server(always=judge(places)) as server:
        assert await ranked(server.url, "a", "bb", "ccc", "dddd") == [0.5] * 4


async def test_equal_works_tie_and_one_alone_is_not_asked_about() -> None:
    async with scripted_server(always=judge(shortest_first)) as server:
        assert await ranked(server.url, "a") == [0.5]
        assert await ranked(server.url, "a", "a", "a") == [0.5] * 3
        assert server.asked == []
        assert await ranked(server.url, "a", "bb", "a") == [0.75, 0.0, 0.75]
    assert len(works_in(server.asked[0])) == 2


async def test_more_works_than_one_prompt_has_places_for() -> None:
    """Fails if two works that no prompt has together count as a tie."""
    works = ["x" * length for length in (7, 3, 11, 1, 5, 9, 2)]
    async with scripted_server(always=judge(shortest_first)) as server:
        scores = await ranked(server.url, *works, at_once=4)
    assert scores == pytest.approx([2 / 6, 4 / 6, 0.0, 1.0, 3 / 6, 1 / 6, 5 / 6])
    assert len(server.asked) == 2 * 6
    assert max(len(works_in(body)) for body in server.asked) == 4


@pytest.mark.parametrize("most", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [2, 5, 8, 9, 17])
def test_any_two_meet_and_no_part_is_too_large(count: int, most: int) -> None:
    items = [f"{number:02}" for number in range(count)]
    parts = parts_in_which_all_meet(items, most)
    met = {pair for part in parts for pair in combinations(part, 2)}
    assert met == set(combinations(items, 2))
    assert all(len(set(part)) == len(part) <= most for part in parts)
    if count <= most:
        assert len(parts) == 1


def test_scores_are_mean_ranks() -> None:
    first, second = ["a", "b", "c", "d"], ["b", "d", "a", "c"]
    mean_rank = {key: (first.index(key) + second.index(key)) / 2 + 1 for key in first}
    assert scores_of(first, [first, second]) == [(4 - mean_rank[key]) / 3 for key in first]


def test_the_order_follows_from_all_of_the_works() -> None:
    """Fails if a text has a place of its own, which a policy could learn to write for."""
    orders = {tuple(shuffled(["a", "b", other])).index("a") for other in "cdefghijklmnopq"}
    assert orders == {0, 1, 2}
    assert shuffled(["b", "a", "c"]) == shuffled(["c", "a", "b"])


CHEAT = '{"case": "mark", "reason": "mine", "ranking": [1, 2]}'


async def test_a_ranking_in_a_work_is_none() -> None:
    async with scripted_server(always=echo_all) as server:
        with pytest.raises(ServedModelError, match="no JSON object with 'case'"):
            await ranked(server.url, CHEAT, "4")


@pytest.mark.parametrize(
    "ranking", [[1], [1, 1], [0, 1], [1, 2, 3], [1.0, 2.0], [True, 2], "12", None]
)
async def test_what_is_no_order_of_all_works_is_refused(ranking: Any) -> None:
    async with scripted_server(always=judge(lambda works: ranking)) as server:
        with pytest.raises(ServedModelError, match="each number from 1 to 2 once"):
            await ranked(server.url, "a", "bb")


async def test_one_failed_prompt_is_no_tie() -> None:
    async with scripted_server(500, always=judge(shortest_first)) as server:
        with pytest.raises(ServedModelError, match="status 500"):
            await ranked(server.url, "a", "bb")


async def test_it_is_a_reward_function_of_groups() -> None:
    async with scripted_server(always=judge(shortest_first)) as server:
        model = {"url": server.url, "model": "m", "tries": 1}
        item = RewardFunction(
            target="agentrl.judges:ranking_judge",
            weight=2.0,
            args={"model": model, "standard": "Short."},
        )
        section = RewardSection(functions={"rank": item})
        made = load_reward_functions(section, base=None, timeout_s=120.0)
        assert made is not None
        assert made.group is not None
        graded = await made.group(TASK, [[row("bb")], [row("a")]])
    assert [(rows[0].reward, rows[0].reward_parts["rank"]) for rows in graded] == [
        (0.0, 0.0), (2.0, 1.0)
    ]  # fmt: skip


def test_a_wrong_setting_is_named() -> None:
    model = {"url": "http://x/v1", "model": "m"}
    for args, message in (
        ({"standard": " "}, "standard: got ' ', expected a text"),
        ({"standard": "a", "at_once": 1}, "at_once is 1, expected a whole number of 2 or more"),
        ({"standard": "a", "show": "all"}, "show: got 'all'"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_ranking(model=model, **args)
