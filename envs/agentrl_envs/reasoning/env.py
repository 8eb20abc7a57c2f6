"""One puzzle, one or more tries, judged by the verifier of its generator."""

from __future__ import annotations

from typing import Any

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError
from agentrl.plugins.own_threads import own_thread
from agentrl.types import Explanation, Task
from agentrl.types.solved import is_solved
from agentrl_envs.marked_text import last_between
from agentrl_envs.reasoning.judge import judge

LONGEST = 20_000
"""Characters of an answer that are judged; a longer one is wrong."""


class ReasoningTask(AgentInstance):
    """Answer a puzzle between `<answer>` and `</answer>`.

    Args:
        tries: answers the model may give; after a wrong one it reads that it is wrong.
        partial: whether what a verifier gives for a wrong answer counts. Off, because several give
            a few percent for anything, which a group baseline amplifies.
    """

    needs_label = True
    reward_range = (0.0, 1.0)

    def __init__(self, tries: int = 1, partial: bool = False) -> None:
        if tries < 1:
            raise ConfigError(f"ReasoningTask: tries must be at least 1, got {tries}")
        self.tries = tries
        self.partial = partial

    async def reset(self, task: Task) -> Observation:
        """Show the model its puzzle.

        Raises:
            ValueError: the task is not one of `make_tasks`.
        """
        self._family, self._entry = entry_of(task)
        self._turns = 0
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Judge the answer of a turn; a turn without one is a wrong try.

        Raises:
            GraderError: the verifier cannot be run.
        """
        self._turns += 1
        answer = final_answer(action.text)
        score, hung = 0.0, False
        if answer is not None and len(answer) <= LONGEST:
            verdict = await own_thread(judge, self._family, answer, self._entry)
            score, hung = verdict.score, verdict.hung
        solved = is_solved(score)
        if not solved and not self.partial:
            score = 0.0
        if not solved and self._turns < self.tries and not action.last:
            wrong = "That is not the answer" if answer is not None else "There is no answer in that"
            return StepResult(
                environment_feedback=f"{wrong}. Try again and end with <answer>...</answer>."
            )
        return StepResult(
            rewards=score,
            done=True,
            scores=score,
            reward_parts={"answer": score},
            extra_logs={
                "solved": float(solved),
                "answered": float(answer is not None),
                "judge_hung": float(hung),
            },
            explanation=Explanation(
                reference=str(self._entry["answer"] or ""), reason=_reason(answer, score, hung)
            ),
        )

    def solution(self, task: Task) -> str | None:
        """The generator's own answer; None for puzzles that have many and name none."""
        answer = task.label.get("answer") if isinstance(task.label, dict) else None
        return None if answer is None else f"<answer>{answer}</answer>"


def _reason(answer: str | None, score: float, hung: bool) -> str:
    if answer is None:
        return "There is no answer in the turn."
    if hung:
        return "The verifier did not come to an end."
    return f"The verifier of the puzzle gave {score:g} for {answer[:500]!r}."


def entry_of(task: Task) -> tuple[str, dict[str, Any]]:
    """The generator of a task and its entry there.

    Raises:
        ValueError: the task is not one of `make_tasks`.
    """
    label = task.label
    if not isinstance(label, dict) or not {"question", "answer", "metadata"} <= label.keys():
        raise ValueError(
            f"task {task.id!r}: a puzzle needs a label with 'question', 'answer' and 'metadata', "
            f"as agentrl_envs.reasoning:make_tasks gives, got {type(label).__name__}"
        )
    return str(task.metadata.get("family") or label["metadata"]["source_dataset"]), label


def final_answer(text: str) -> str | None:
    """The last answer of a turn; None without one.

    Example:
        >>> final_answer("Is it <answer>3</answer>? No: <answer> 4 </answer>.")
        '4'
    """
    found = last_between(text, "<answer>", "</answer>")
    return None if found is None else found.strip()
