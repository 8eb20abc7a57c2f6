"""A judge that compares two answers to one task, asked in both orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from agentrl.judges import quote
from agentrl.judges.arguments import check_standard, one_for_each
from agentrl.judges.case import (
    MAX_CHARS,
    CaseJudge,
    CaseOptions,
    all_verdicts,
    options_of,
    verdict_schema,
)
from agentrl.judges.material import Shown, Work
from agentrl.served import ServedSettings, read_settings
from agentrl.types import Task

Winner = Literal["first", "second", "tie"]
"""Verdict on two works in the order in which they were shown."""

_WINNERS: tuple[Winner, ...] = ("first", "second", "tie")
_SYSTEM = """\
You compare two pieces of work on the same task, called "first work" and "second work". {quoting}

The better one is the one that does better by this standard:
{standard}

Length, tone and the order in which they are shown decide nothing. First say in one to four \
sentences what decides it, then give the verdict: "first", "second", or "tie" if neither is better.
Answer with one JSON object and nothing else, in this form, where every word in capitals is yours \
to fill in:
{{"case": MARK_OF_THE_CASE, "reason": REASON, "better": VERDICT}}"""
_LAST = """

Now compare the two works between the lines above with the mark, by the standard alone. Set "case" \
to the mark of this case."""
_SCHEMA = verdict_schema(
    {"reason": {"type": "string"}, "better": {"type": "string", "enum": list(_WINNERS)}}
)


class PairwiseJudge(CaseJudge):
    """Asks a served model which of two answers is better, each order once.

    A model that prefers whatever stands first (or second) disagrees with itself, and that is a tie.
    """

    def __init__(
        self,
        settings: ServedSettings,
        standard: str,
        **options: Unpack[CaseOptions],
    ) -> None:
        """Set who compares, by which standard; nothing is asked yet.

        Args:
            settings: of the model.
            standard: what makes an answer better, as text.
            options: see `CaseOptions`.

        Raises:
            ConfigError: the variable with the key is not set.
        """
        instructions = _SYSTEM.format(quoting=quote.INSTRUCTIONS, standard=standard)
        super().__init__(settings, instructions, **options)

    async def __call__(self, task: Task, a: Work, b: Work) -> float:
        """Probability that `a` is the better one: 1, 0, or 0.5 for a tie.

        It is a vote of two and not calibrated; orders that disagree are a tie.

        Raises:
            ServedModelError: the model could not be asked, or gave no verdict of this case.
        """
        forward, backward = await all_verdicts(
            self.winner(task, *pair) for pair in ((a, b), (b, a))
        )
        if (forward, backward) == ("first", "second"):
            return 1.0
        return 0.0 if (forward, backward) == ("second", "first") else 0.5

    async def winner(self, task: Task, first: Work, second: Work) -> Winner:
        """The verdict in one order.

        Raises:
            ServedModelError: see `__call__`.
        """
        works = {"first work": first, "second work": second}
        return await self.ask(task, works, last=_LAST, read=read_winner, schema=_SCHEMA)


def read_winner(said: str, mark: str) -> Winner:
    """The verdict in the model's answer.

    Raises:
        ValueError: there is not exactly one, or it is none of `Winner`.
    """
    given = quote.the_verdict(said, mark)
    for winner in _WINNERS:
        if given.get("better") == winner and isinstance(given.get("reason"), str):
            return winner
    raise ValueError(f"better is none of {', '.join(_WINNERS)}, or there is no reason")


async def pairwise_judge(
    task: Task,
    a: Work,
    b: Work,
    *,
    model: Mapping[str, Any],
    standard: str,
    show: Shown = "answer",
    with_label: bool = False,
    max_chars: int = MAX_CHARS,
) -> float:
    """Labeller of pairs: probability that `a` is the better answer, by a served model.

    Args:
        task: that both answer.
        a: one answer.
        b: the other.
        model: fields of `agentrl.served.ServedSettings`.
        standard: what makes an answer better.
        show: `answer` the last message of the policy, `transcript` all turns.
        with_label: whether the judge sees the label of the task.
        max_chars: most characters of each answer, and as many of the task.

    Raises:
        ServedModelError: the model could not be asked.
    """
    judge = pairwise_of(
        model=model, standard=standard, show=show, with_label=with_label, max_chars=max_chars
    )
    return await judge(task, a, b)


def pairwise_of(
    *,
    model: Mapping[str, Any],
    standard: str,
    show: Shown = "answer",
    with_label: bool = False,
    max_chars: int = MAX_CHARS,
) -> PairwiseJudge:
    """The judge of `pairwise_judge`'s arguments; the same object for the same arguments.

    Raises:
        ConfigError: an argument is wrong; names it.
    """
    values = {
        "model": model,
        "standard": standard,
        "show": show,
        "with_label": with_label,
        "max_chars": max_chars,
    }
    return _pairwise_of(values)


def check_pairwise(**args: Any) -> None:
    """Check the arguments of a run file before anything runs, the folder of the cache too.

    Raises:
        ConfigError: one of them is wrong; names it.
    """
    pairwise_of(**args).model.require_cache()


pairwise_judge.check_args = check_pairwise  # type: ignore[attr-defined]


@one_for_each
def _pairwise_of(args: dict[str, Any]) -> PairwiseJudge:
    check_standard(args["standard"])
    return PairwiseJudge(
        read_settings(args["model"], "model"),
        args["standard"],
        **options_of(args),
    )
