"""The command to run next for a finding: the one that shows why."""

from __future__ import annotations

import shlex

from agentrl.health.records import Verdict

_LONGEST = (
    "select step, task_id, rollout_id, action_tokens, reward, score from trajectories "
    "where kind = 'train' and step >= {step} order by action_tokens desc limit 20"
)
# All wrong ones, since what is paid for them may lie below the bound of paid.
_PAID_WRONG = (
    "traj find {run} kind:train is:wrong step>={step} sort:-reward",
    "rollouts that are wrong by the score, those that are paid most first",
)
_PREFLIGHT = ("preflight {run}/config.yaml --resume", "grades known answers by the run's reward")
_REPLAY = ("replay {run}", "computes an update again and names what differs")

_NEXT: dict[str, tuple[str, str]] = {
    "infrastructure": ("traj find {run} end:{end} step>={step}", "the rollouts that were lost"),
    "starvation": ("traj find {run} end:stale step>={step}", "the rollouts that were dropped"),
    "tool_errors": ("traj find {run} tool:any_error step>={step}", "the calls that failed"),
    "sampler_learner_gap": ("mismatch {run}", "traces the gap to tokens and a likely cause"),
    "not_finite": _REPLAY,
    "grad_norm": _REPLAY,
    "clip_fraction": _REPLAY,
    "reward_flat": _PREFLIGHT,
    "reward_fall": _PREFLIGHT,
    "reward_clipped": _PREFLIGHT,
    "empty_gradient": _PREFLIGHT,
    "truncation": ("traj find {run} is:truncated step>={step}", "the rollouts that were cut off"),
    "length_hacking": ("traj query {run} {sql}", "the longest rollouts with their rewards"),
    "score_falls": _PAID_WRONG,
    "decoupling": (
        "traj find {run} kind:train step>={step} sort:-reward",
        "the rollouts that are paid most",
    ),
    "judge_hacking": _PAID_WRONG,
    "members_disagree": _PAID_WRONG,
    "reward_model_drift": _PAID_WRONG,
    "reward_spike": _PAID_WRONG,
}
"""Words of a command after `agentrl`, and its purpose; by detector."""


def next_command(verdict: Verdict, run: str) -> tuple[str, str] | None:
    """The command line that shows why, and its purpose; None where the evidence shows it already.

    Args:
        verdict: a finding.
        run: the run directory, as it is typed.
    """
    known = _NEXT.get(verdict.name)
    if known is None:
        return None
    words, purpose = known
    step = verdict.first_step or 0
    sql = _LONGEST.format(step=step)
    ends = [item.metric.rpartition("/")[2] for item in verdict.evidence if "/" in item.metric]
    values = {"run": run, "step": step, "sql": sql, "end": ends[0] if ends else ""}
    line = [word.format_map(values) for word in words.split()]
    return shlex.join(["agentrl", *line]), purpose
