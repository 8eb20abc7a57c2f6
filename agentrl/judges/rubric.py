"""A judge that scores one answer by weighted criteria, as a reward function."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from agentrl.errors import ConfigError, choices
from agentrl.judges import quote
from agentrl.judges.arguments import check_labelled, one_for_each
from agentrl.judges.case import (
    MAX_CHARS,
    CaseJudge,
    CaseOptions,
    closed_object,
    options_of,
    verdict_schema,
)
from agentrl.judges.material import Shown, Work
from agentrl.served import ServedSettings, read_settings
from agentrl.types import Explanation, RewardValue, Task, Trajectory

TOP = 4
"""Grade of a criterion that is met; 0 is that of one that is not."""

_SYSTEM = """\
You judge how well a piece of work meets each of the criteria below. {quoting}

Criteria:
{criteria}

Judge each criterion by itself: first say in one to three sentences what in the work decides it, \
then give a whole number from 0 (not met at all) to {top} (fully met).
Answer with one JSON object and nothing else, in this form, where every word in capitals is yours \
to fill in:
{{"case": MARK_OF_THE_CASE, "criteria": {{{form}}}}}"""
_LAST = """

Now judge the work between the lines above with the mark, by the criteria alone. Set "case" to the \
mark of this case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing that is judged, with its weight."""

    name: str
    """Short name, a key of the verdict."""
    text: str
    """Statement that is met or not, as "The answer names its sources." """
    weight: float = 1.0
    """Weight in the mean; above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricVerdict:
    """Grades of one answer and the reasons given for them."""

    score: float
    """Weighted mean of the grades, in [0, 1]."""
    grades: Mapping[str, int]
    """Criterion to a grade from 0 to `TOP`."""
    reasons: Mapping[str, str]
    """Criterion to the words before the grade. They may repeat the answer: never a prompt."""


class RubricJudge(CaseJudge):
    """Asks a served model for the grades of an answer."""

    def __init__(
        self,
        settings: ServedSettings,
        criteria: Sequence[Criterion],
        **options: Unpack[CaseOptions],
    ) -> None:
        """Set who judges, by which criteria; nothing is asked yet.

        Args:
            settings: of the model.
            criteria: one or more, of different names.
            options: see `CaseOptions`.

        Raises:
            ConfigError: the variable with the key is not set.
        """
        self.criteria = tuple(criteria)
        self._schema = _schema(self.criteria)
        form = ", ".join(
            f'{json.dumps(item.name)}: {{"reason": REASON, "grade": GRADE}}' for item in criteria
        )
        instructions = _SYSTEM.format(
            quoting=quote.INSTRUCTIONS,
            criteria="\n".join(f"- {item.name}: {item.text}" for item in criteria),
            top=TOP,
            form=form,
        )
        super().__init__(settings, instructions, **options)

    async def verdict(self, task: Task, work: Work) -> RubricVerdict:
        """Grades of an answer.

        Raises:
            ServedModelError: the model could not be asked, or gave no verdict of this case.
        """
        return await self.ask(task, {"work": work}, last=_LAST, read=self.read, schema=self._schema)

    def read(self, said: str, mark: str) -> RubricVerdict:
        """The verdict in the model's answer.

        Args:
            said: text of the model.
            mark: of the case.

        Raises:
            ValueError: there is not exactly one, or a grade is missing or none.
        """
        given = quote.the_verdict(said, mark).get("criteria")
        names = [item.name for item in self.criteria]
        if not isinstance(given, dict) or set(given) != set(names):
            raise ValueError(f"criteria has other keys than {', '.join(names)}")
        grades, reasons = {}, {}
        for name in names:
            one = given[name] if isinstance(given[name], dict) else {}
            grade, reason = one.get("grade"), one.get("reason")
            if type(grade) is not int or not 0 <= grade <= TOP:
                raise ValueError(f"the grade of {name} is no whole number from 0 to {TOP}")
            if not isinstance(reason, str):
                raise ValueError(f"the reason of {name} is no text")
            grades[name], reasons[name] = grade, reason
        total = math.fsum(item.weight for item in self.criteria)
        score = math.fsum(item.weight * grades[item.name] / TOP for item in self.criteria) / total
        return RubricVerdict(score=min(score, 1.0), grades=grades, reasons=reasons)


async def rubric_judge(
    trajectory: Trajectory,
    task: Task,
    *,
    rows: Sequence[Trajectory],
    model: Mapping[str, Any],
    criteria: Sequence[Mapping[str, Any]],
    show: Shown = "answer",
    with_label: bool = False,
    max_chars: int = MAX_CHARS,
    check: str | None = None,
) -> RewardValue:
    """Reward function: a served model's weighted grades of a rollout, from 0 to 1.

    The grade of each criterion, from 0 to 1 too, is a part of the value; the judge's words are its
    explanation.

    Args:
        trajectory: last row of the rollout.
        task: of the rollout.
        rows: all rows of the rollout.
        model: fields of `agentrl.served.ServedSettings`: `url`, `model`, `api_key_env`, ...
        criteria: mappings with `name`, `text` and `weight`.
        show: `answer` the last message of the policy, `transcript` all turns of the rollout.
        with_label: whether the judge sees the label of the task.
        max_chars: most characters of the work, and as many of the task.
        check: labelled answers by which `agentrl preflight` measures the judge; not read here.

    Raises:
        ServedModelError: the model could not be asked; ends the rollout as `grader_crashed`.
    """
    judge = rubric_of(
        model=model, criteria=criteria, show=show, with_label=with_label, max_chars=max_chars
    )
    verdict = await judge.verdict(task, rows or trajectory)
    lines = [
        f"{name} {grade}/{TOP}: {verdict.reasons[name]}" for name, grade in verdict.grades.items()
    ]
    return RewardValue(
        value=verdict.score,
        parts={name: grade / TOP for name, grade in verdict.grades.items()},
        explanation=Explanation(reason="\n".join(lines)),
    )


def rubric_of(
    *,
    model: Mapping[str, Any],
    criteria: Sequence[Mapping[str, Any]],
    show: Shown = "answer",
    with_label: bool = False,
    max_chars: int = MAX_CHARS,
) -> RubricJudge:
    """The judge of `rubric_judge`'s arguments; the same object for the same arguments.

    Raises:
        ConfigError: an argument is wrong; names it.
    """
    values = {
        "model": model,
        "criteria": criteria,
        "show": show,
        "with_label": with_label,
        "max_chars": max_chars,
    }
    return _rubric_of(values)


def check_rubric(*, check: Any = None, **args: Any) -> None:
    """Check the arguments of a run file before anything runs, the folder of the cache too.

    Raises:
        ConfigError: one of them is wrong; names it.
    """
    check_labelled(check)
    rubric_of(**args).model.require_cache()


rubric_judge.check_args = check_rubric  # type: ignore[attr-defined]


@one_for_each
def _rubric_of(args: dict[str, Any]) -> RubricJudge:
    settings = read_settings(args["model"], "model")
    return RubricJudge(
        settings,
        _criteria(args["criteria"]),
        **options_of(args),
    )


def _criteria(values: Any) -> list[Criterion]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"criteria: got {values!r}, expected a list of {{name, text, weight}}")
    found: dict[str, Criterion] = {}
    for index, value in enumerate(values):
        where = f"criteria[{index}]"
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: got {value!r}, expected {{name, text, weight}}")
        for key in value:
            if key not in ("name", "text", "weight"):
                raise ConfigError(f"{where}: {choices(str(key), ('name', 'text', 'weight'))}")
        name, text, weight = (value.get(key) for key in ("name", "text", "weight"))
        if not isinstance(name, str) or not name.strip() or name in found:
            raise ConfigError(f"{where}.name: got {name!r}, expected a name of its own")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{where}.text: got {text!r}, expected what is to be met, as text")
        weight = 1.0 if weight is None else weight
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise ConfigError(f"{where}.weight: got {weight!r}, expected a number above 0")
        found[name] = Criterion(name=name, text=text, weight=float(weight))
    return list(found.values())


def _schema(criteria: Sequence[Criterion]) -> dict[str, Any]:
    """JSON schema of a verdict; the reason stands before the grade, as it is written in order."""
    one = closed_object({"reason": {"type": "string"}, "grade": {"type": "integer"}})
    return verdict_schema({"criteria": closed_object({item.name: one for item in criteria})})
