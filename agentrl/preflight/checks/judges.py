"""The check of the judges of a run that name labelled answers: do they agree with the labels?"""

from __future__ import annotations

from collections import Counter

from agentrl.config.plan import RewardPlan
from agentrl.config.reward import RewardSection
from agentrl.judges.agreement import JudgeAgreement, agreement
from agentrl.preflight.reward.judge_check import LabelledAnswers, judge_answers
from agentrl.types.finding import Finding, fail, warn

NAME = "judges"
_CHECK = "check"
"""Argument of a judge that names its labelled answers."""


def judges_with_labels(section: RewardSection) -> dict[str, str]:
    """Names in `reward.functions` whose `args.check` names labelled answers, with the file."""
    return {
        name: item.args[_CHECK]
        for name, item in section.functions.items()
        if isinstance(item.args.get(_CHECK), str)
    }


async def judges(rewards: RewardPlan) -> Finding | str:
    """Agreement of each judge with the labelled answers that its `args.check` names.

    Columns and range are those of `agentrl judge check` without options.
    """
    lines: list[str] = []
    doubtful: list[str] = []
    for name, source in judges_with_labels(rewards.reward).items():
        answers = LabelledAnswers(source=source)
        judged = await judge_answers(rewards, answers, function=name)
        if judged.failures:
            reasons = Counter(text.partition(": ")[2] for text in judged.failures)
            return fail(
                NAME,
                f"{name}: {len(judged.failures)} of {len(judged.failures) + len(judged.cases)} "
                f"labelled answers could not be judged: {reasons.most_common(1)[0][0]}",
                "see that the judge's server answers, and try agentrl judge check",
            )
        found = agreement(judged.cases)
        lines.append(f"{name}: {_line(found)}")
        if found.kappa_interval is None or found.kappa_interval[0] <= 0:
            doubtful.append(name)
    if doubtful:
        return warn(
            NAME,
            f"{'; '.join(lines)}: the agreement of {', '.join(doubtful)} may be chance",
            "label more answers, or take a better model or clearer criteria",
        )
    return "; ".join(lines)


def _line(found: JudgeAgreement) -> str:
    low, high = found.accuracy_interval
    kappa = "unknown" if found.kappa is None else f"{found.kappa:.2f}"
    if found.kappa_interval is not None:
        kappa += f" [{found.kappa_interval[0]:.2f}, {found.kappa_interval[1]:.2f}]"
    return (
        f"{found.cases} answers, accuracy {found.accuracy:.2f} [{low:.2f}, {high:.2f}], kappa "
        f"{kappa}, mean score {found.mean_score:.2f}, mean label {found.mean_label:.2f}"
    )
