"""A judge that ranks the rollouts of a group, as a reward function of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from agentrl.errors import ConfigError
from agentrl.judges import quote
from agentrl.judges.arguments import check_labelled, check_standard, one_for_each
from agentrl.judges.case import CaseJudge, CaseOptions, all_verdicts, options_of, verdict_schema
from agentrl.judges.material import Shown, Work, work_parts
from agentrl.judges.places import digest_of, parts_in_which_all_meet, scores_of, shuffled
from agentrl.served import ServedSettings, read_settings
from agentrl.types import Explanation, RewardValue, Task, Trajectory

MOST_AT_ONCE = 8
"""Default of `at_once`: works in one prompt."""
MAX_WORK_CHARS = 8_000
"""Default of `max_chars`: of each work, of which there are several in a prompt."""

_SYSTEM = """\
You rank several pieces of work on the same task, called "work 1", "work 2" and so on. {quoting}

The better one is the one that does better by this standard:
{standard}

Length, tone and the order in which they are shown decide nothing. First say in one to six \
sentences what decides it, then give the ranking: the numbers of all works, each once, the best \
first.
Answer with one JSON object and nothing else, in this form, where every word in capitals is yours \
to fill in:
{{"case": MARK_OF_THE_CASE, "reason": REASON, "ranking": [NUMBER, NUMBER, ...]}}"""
_LAST = """

Now rank the {count} works between the lines above with the mark, by the standard alone. Set \
"case" to the mark of this case."""
_SCHEMA = verdict_schema(
    {"reason": {"type": "string"}, "ranking": {"type": "array", "items": {"type": "integer"}}}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRanking:
    """One order of several works and the reason given for it."""

    numbers: tuple[int, ...]
    """Numbers of all works, from 1 as they were shown, the best first."""
    reason: str
    """Words before the order. They may repeat the works: never a prompt."""


class RankingJudge(CaseJudge):
    """Asks a served model to order works from best to worst, each order of showing them twice.

    The order in which works are shown follows from a digest of them, and the second prompt has it
    reversed: of any two works each stands before the other once. A pair that the two rankings order
    differently is a tie. The score of a work is its share of won comparisons, a tie counting half,
    which is the same as its mean rank: 1 for one that is best in both, 0 for one that is last in
    both.
    """

    def __init__(
        self,
        settings: ServedSettings,
        standard: str,
        *,
        at_once: int = MOST_AT_ONCE,
        **options: Unpack[CaseOptions],
    ) -> None:
        """Set who ranks, by which standard; nothing is asked yet.

        Args:
            settings: of the model.
            standard: what makes a work better, as text.
            at_once: most works in one prompt; more are ranked in parts in which any two meet.
            options: see `CaseOptions`.

        Raises:
            ConfigError: the variable with the key is not set.
        """
        options.setdefault("max_chars", MAX_WORK_CHARS)
        instructions = _SYSTEM.format(quoting=quote.INSTRUCTIONS, standard=standard)
        super().__init__(settings, instructions, **options)
        self._at_once = at_once

    async def values(self, task: Task, works: Sequence[Work]) -> list[RewardValue]:
        """The score of each work in [0, 1], with a mean of 0.5, and the judge's words about it.

        Works that look the same to the judge are shown once and tie; a work alone has 0.5.

        Raises:
            ServedModelError: the model could not be asked, or gave no ranking of this case.
        """
        keys = [digest_of(work_parts("work", work, self.show)) for work in works]
        distinct = dict(zip(keys, works, strict=True))
        parts = [
            order
            for part in parts_in_which_all_meet(sorted(distinct), self._at_once)
            for order in (shuffled(part), shuffled(part)[::-1])
        ]
        found = await all_verdicts(
            self.ranking(task, [distinct[key] for key in part]) for part in parts
        )
        rankings: list[list[str]] = []
        words: dict[str, list[str]] = {key: [] for key in keys}
        for part, result in zip(parts, found, strict=True):
            ranking = [part[number - 1] for number in result.numbers]
            rankings.append(ranking)
            for number, key in enumerate(part, start=1):
                words[key].append(
                    f"as work {number} of {len(part)}, ranked {ranking.index(key) + 1}: "
                    f"{result.reason}"
                )
        return [
            RewardValue(value=score, explanation=Explanation(reason="\n".join(words[key])))
            for key, score in zip(keys, scores_of(keys, rankings), strict=True)
        ]

    async def ranking(self, task: Task, works: Sequence[Work]) -> WorkRanking:
        """The order of the works, as shown in this order.

        Raises:
            ServedModelError: see `values`.
        """
        return await self.ask(
            task,
            {f"work {number}": work for number, work in enumerate(works, start=1)},
            last=_LAST.format(count=len(works)),
            read=lambda said, mark: read_ranking(said, mark, len(works)),
            schema=_SCHEMA,
        )


def read_ranking(said: str, mark: str, count: int) -> WorkRanking:
    """The ranking in the model's answer.

    Raises:
        ValueError: there is not exactly one, or it is no order of all works.
    """
    given = quote.the_verdict(said, mark)
    ranking: Any = given.get("ranking")
    numbers = ranking if isinstance(ranking, list) else []
    whole = all(type(number) is int for number in numbers)
    if not whole or sorted(numbers) != list(range(1, count + 1)):
        raise ValueError(f"ranking does not have each number from 1 to {count} once")
    reason = given.get("reason")
    if not isinstance(reason, str):
        raise ValueError("there is no reason")
    return WorkRanking(numbers=tuple(numbers), reason=reason)


async def ranking_judge(
    trajectories: Sequence[Trajectory],
    task: Task,
    *,
    rows: Sequence[Sequence[Trajectory]],
    model: Mapping[str, Any],
    standard: str,
    show: Shown = "answer",
    with_label: bool = False,
    max_chars: int = MAX_WORK_CHARS,
    at_once: int = MOST_AT_ONCE,
    check: str | None = None,
) -> list[RewardValue]:
    """Reward function of groups: the place of each rollout in its group by a served model.

    Args:
        trajectories: last row of each rollout.
        task: of the group.
        rows: all rows of each rollout.
        model: fields of `agentrl.served.ServedSettings`: `url`, `model`, `api_key_env`, ...
        standard: what makes a work better.
        show: `answer` the last message of the policy, `transcript` all turns of the rollout.
        with_label: whether the judge sees the label of the task.
        max_chars: most characters of each work, and as many of the task.
        at_once: most works in one prompt.
        check: labelled answers by which `agentrl preflight` measures the judge; not read here.

    Returns:
        Scores in [0, 1] with a mean of 0.5, with the judge's words; see `RankingJudge`.

    Raises:
        ServedModelError: the model could not be asked; ends the rollouts as `grader_crashed`.
    """
    judge = ranking_of(
        model=model,
        standard=standard,
        show=show,
        with_label=with_label,
        max_chars=max_chars,
        at_once=at_once,
    )
    return await judge.values(task, rows or trajectories)


def ranking_of(
    *,
    model: Mapping[str, Any],
    standard: str,
    show: Shown = "answer",
    with_label: bool = False,
    max_chars: int = MAX_WORK_CHARS,
    at_once: int = MOST_AT_ONCE,
) -> RankingJudge:
    """The judge of `ranking_judge`'s arguments; the same object for the same arguments.

    Raises:
        ConfigError: an argument is wrong; names it.
    """
    values = {
        "model": model,
        "standard": standard,
        "show": show,
        "with_label": with_label,
        "max_chars": max_chars,
        "at_once": at_once,
    }
    return _ranking_of(values)


def check_ranking(*, check: Any = None, **args: Any) -> None:
    """Check the arguments of a run file before anything runs, the folder of the cache too.

    Raises:
        ConfigError: one of them is wrong; names it.
    """
    check_labelled(check)
    ranking_of(**args).model.require_cache()


ranking_judge.check_args = check_ranking  # type: ignore[attr-defined]


@one_for_each
def _ranking_of(args: dict[str, Any]) -> RankingJudge:
    check_standard(args["standard"])
    at_once = args["at_once"]
    if type(at_once) is not int or at_once < 2:
        raise ConfigError(f"at_once is {at_once!r}, expected a whole number of 2 or more")
    return RankingJudge(
        read_settings(args["model"], "model"),
        args["standard"],
        at_once=at_once,
        **options_of(args),
    )
