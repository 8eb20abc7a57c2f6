"""Records of a rollout, from its task to the group of its siblings.

Legend for the shapes in field docstrings: `_T` response positions of one row, `_P` prompt tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from agentrl.types.endings import TERMINATION_RULES, Termination, TerminationRule
from agentrl.types.messages import ImageSpan, Message
from agentrl.types.turns import AgentRequest, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do: a row of a dataset.

    Example:
        >>> task = Task(id="gsm8k/17", prompt="What is 1 + 2?", label="3")
        >>> task.split
        'train'
    """

    id: str
    """Unique inside its dataset and stable across runs; resume and grouping rely on it."""
    prompt: str | tuple[Message, ...]
    """Text (becomes one user message) or chat messages."""
    label: Any = None
    """What the environment needs to judge an answer; never shown to the model."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Anything else of the row; JSON-serialisable."""
    split: str = "train"
    """Which split the row belongs to."""
    label_column: str = field(default="", compare=False)
    """Column of the label where it is not `label` itself; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reasons for the reward of a rollout, for those who read it; the model never sees them.

    An environment gives one with `StepResult.explanation`, a reward function with
    `RewardValue.explanation`. Longer texts than `agentrl.types.explanation.MOST_CHARS` are
    shortened in the middle where they are stored.

    Example:
        >>> why = Explanation(reference="36", reason="the last number is 35, expected 36")
        >>> why.reference, why.tests
        ('36', '')
    """

    reference: str = ""
    """The right answer, as the task has it: a value, a solution, a change of source."""
    tests: str = ""
    """Tests that graded the rollout, one a line, each with how it ended."""
    grader_output: str = ""
    """Text that the grader printed: the log of a test run, a traceback."""
    reason: str = ""
    """Sentences that explain why the reward is what it is; of a judge its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One row of training data: one rollout of one task, or the part of it after a prefix break.

    The ids are exactly those the engine saw and produced, in order. Text derives from them.

    Example:
        Two sampled tokens, one of the environment, one sampled after a sync of the weights:

        >>> row = Trajectory(
        ...     task_id="gsm8k/17", group_id="s3/gsm8k/17", rollout_id="s3/gsm8k/17/0",
        ...     prompt_ids=(1, 5, 9), response_ids=(31, 7, 12, 2), response_mask=(1, 1, 0, 1),
        ...     rollout_log_probs=(-0.7, -1.2, 0.0, -0.1), policy_versions=(4, 4, -1, 5),
        ...     reward=1.0, termination=Termination.ENV_DONE)
        >>> row.num_action_tokens, row.rule.reward_trusted
        (3, True)
    """

    task_id: str
    """`Task.id`."""
    group_id: str
    """Shared by the rollouts of one task in one step; group statistics go by it."""
    rollout_id: str
    """One rollout. Rows that share it count once in advantages and loss weights."""
    row_index: int = 0
    """Position of this row among the rows of its rollout."""
    prompt_ids: tuple[int, ...]
    """[_P] What the engine was given before the first sampled token."""
    response_ids: tuple[int, ...]
    """[_T] Sampled and environment tokens in order."""
    response_mask: tuple[int, ...]
    """[_T] 1 = sampled by the policy, 0 = put there by the environment."""
    rollout_log_probs: tuple[float, ...]
    """[_T] The sampler's log-probability; 0.0 where the mask is 0."""
    policy_versions: tuple[int, ...]
    """[_T] The weights that sampled the token; -1 where the mask is 0."""
    prompt_text: str = ""
    """`prompt_ids` decoded with their special tokens, with words in place of the placeholders of
    each image (`agentrl.images.label`), for reading; filled by the worker."""
    turns: tuple[Turn, ...] = ()
    """Spans over the response, contiguous and in order."""
    reward: float | None = None
    """Sum of step rewards, with the reward functions of the config; None when it cannot be
    trusted."""
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the reward; for reading, never added again."""
    score: float | None = None
    """The environment's 0-1 verdict for filters and evaluation; the reward where it gives none, 0
    where a limit cut the rollout off before it gave one."""
    termination: Termination
    """Reason the rollout ended."""
    termination_detail: str = ""
    """Which limit fired, or the error of an infrastructure failure."""
    extra_logs: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers the environment wants averaged into the metrics; see `usage` for ours."""
    usage: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sandboxes, served models and failed attempts of the rollout, by the names in
    `agentrl.types.usage`; filled by the worker, never by an environment."""
    explanation: Explanation | None = None
    """Reasons for the reward, for reading; the same in all rows of a rollout, None where neither
    the environment nor a reward function gave any. Never part of a prompt."""
    requests: tuple[AgentRequest, ...] = ()
    """Turns that were asked of the model, oldest first, those refused included; in the first row of
    a rollout only. Empty where our own loop ran an environment that gave no other history."""
    split: str = "train"
    """`Task.split`."""
    temperature: float = 1.0
    """Sampling temperature of the action tokens; the trainer divides logits by it."""
    duration_s: float = 0.0
    """Wall time of the rollout in seconds."""
    images: tuple[ImageSpan, ...] = ()
    """Images among the tokens, by position; empty for rows of text alone."""

    def __post_init__(self) -> None:
        lengths = {
            "response_ids": len(self.response_ids),
            "response_mask": len(self.response_mask),
            "rollout_log_probs": len(self.rollout_log_probs),
            "policy_versions": len(self.policy_versions),
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"Trajectory {self.rollout_id}: unequal lengths {lengths}")

    @property
    def rule(self) -> TerminationRule:
        """Consequences of this rollout's termination for later stages."""
        return TERMINATION_RULES[self.termination]

    @property
    def num_action_tokens(self) -> int:
        """Tokens sampled by the policy; the length every penalty and metric uses."""
        return sum(self.response_mask)

    @property
    def tokens_by_version(self) -> Mapping[int, int]:
        """Tokens sampled by the policy, by the weights that sampled them."""
        return Counter(compress(self.policy_versions, self.response_mask))


MOST_REWARD = 1e12
"""Largest size of a reward: sums over turns, functions and groups stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardValue:
    """Value of a reward function, with the numbers behind it.

    A function of `reward.functions` may give one in place of a number.

    Example:
        >>> RewardValue(value=0.75, parts={"correct": 1.0, "short": 0.0}).value
        0.75
    """

    value: float
    """The number that is weighted and added to the reward."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """For reading: stored in `Trajectory.reward_parts` as `FUNCTION/PART`, never added again."""
    explanation: Explanation | None = None
    """Reasons for the value, for reading; added to those of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The rollouts of one task in one step. Groups may be uneven.

    Example:
        >>> def row(number: int) -> Trajectory:
        ...     return Trajectory(
        ...         task_id="t", group_id="g", rollout_id=f"g/{number}", prompt_ids=(1,),
        ...         response_ids=(2,), response_mask=(1,), rollout_log_probs=(-0.1,),
        ...         policy_versions=(0,), termination=Termination.ENV_DONE)
        >>> group = TrajectoryGroup(group_id="g", task_id="t", trajectories=(row(0), row(1)))
        >>> [rows[0].rollout_id for rows in group.rollouts()]
        ['g/0', 'g/1']
    """

    group_id: str
    """Shared by all rows."""
    task_id: str
    """`Task.id`."""
    trajectories: tuple[Trajectory, ...]
    """Rows; several rows may share a `rollout_id`."""

    def __post_init__(self) -> None:
        strangers = {t.group_id for t in self.trajectories} - {self.group_id}
        if strangers:
            raise ValueError(f"TrajectoryGroup {self.group_id}: rows of other groups {strangers}")

    def rollouts(self) -> Iterator[tuple[Trajectory, ...]]:
        """Rows by rollout, in the order in which the rollouts first appear."""
        by_rollout: dict[str, list[Trajectory]] = {}
        for row in self.trajectories:
            by_rollout.setdefault(row.rollout_id, []).append(row)
        for rows in by_rollout.values():
            yield tuple(sorted(rows, key=lambda row: row.row_index))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """Numbers of the trainer for the response tokens of one row, in the last update that saw it.

    Rows are truncated after their last trained token, so the arrays may be shorter than the
    response; positions that are not trained hold 0. Rows that no update computed have no such
    record.

    Example:
        The second token is the environment's, and a row ends after its last trained token:

        >>> tokens = TrainedTokens(
        ...     group_id="s3/gsm8k/17", rollout_id="s3/gsm8k/17/0", row_index=0, updates=1,
        ...     trained=(True, False, True), old_log_probs=(-0.7, 0.0, -0.1),
        ...     log_probs=(-0.6, 0.0, -0.1), entropy=(1.1, 0.0, 0.3), advantages=(0.5, 0.0, 0.5),
        ...     correction=(1.0, 0.0, 1.0), clip=(0, 0, 0), loss=(-0.014, 0.0, -0.0125))
        >>> sum(tokens.trained), tokens.ref_log_probs
        (2, None)
    """

    group_id: str
    """`Trajectory.group_id`."""
    rollout_id: str
    """`Trajectory.rollout_id`."""
    row_index: int
    """`Trajectory.row_index`."""
    updates: int
    """How many updates of the step computed this row."""
    trained: Sequence[bool]
    """[_T] Whether the token is in the loss; the sampled ones among the others were masked."""
    old_log_probs: Sequence[float]
    """[_T] The trainer's log-probability before the first update of the step."""
    log_probs: Sequence[float]
    """[_T] The trainer's log-probability in that last update."""
    entropy: Sequence[float]
    """[_T] Entropy of the policy at the token in nats."""
    advantages: Sequence[float]
    """[_T] Advantage of the token, credit assigned."""
    correction: Sequence[float]
    """[_T] Weight of the sampler correction; 1 without one."""
    clip: Sequence[int]
    """[_T] -1 where the lower bound held the ratio back, 1 where the upper did, else 0."""
    loss: Sequence[float]
    """[_T] What the token added to the loss of that update, weights and denominators included;
    0 where the loss is one sum over many tokens."""
    ref_log_probs: Sequence[float] | None = None
    """[_T] The reference policy's log-probability; None without a penalty."""
