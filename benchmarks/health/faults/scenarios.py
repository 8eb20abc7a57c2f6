"""What is planted in each recorded run, and what a doctor may call it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.pleased_judge import judged_by, pleased_judge
from faults.project import CALL, train


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run to record."""

    name: str
    """Of the run and of the file it is recorded in."""
    expected: frozenset[str] = frozenset()
    """Detectors of which one at least has to speak; empty for a healthy run, where none may."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Config keys with `__` for `.`."""
    judged: bool = False
    """Whether a judge that is pleased by colours is a part of the reward."""

    def train(self, folder: Path, **more: Any) -> tuple[Path, int, str]:
        """Train it; as `faults.project.train`, with more config keys."""
        changes = self.changes | more
        if not self.judged:
            return train(folder, self.name, **changes)
        with pleased_judge() as url:
            return train(folder, self.name, **changes, reward__functions=judged_by(url))


def _healthy(name: str, **changes: Any) -> Scenario:
    # Colours alone are soon paid for in gibberish; this reward wants words, too.
    env = {"pays": "fluent", **changes.pop("env", {})}
    return Scenario(
        name=f"healthy_{name}", changes={"train__learning_rate": 2e-4, **changes, "env__args": env}
    )


def _fault(
    name: str, expected: str, pays: str = "colours", *, judged: bool = False, **changes: Any
) -> Scenario:
    env = {"pays": pays, **changes.pop("env", {})}
    return Scenario(
        name=name,
        expected=frozenset(expected.split()),
        changes={"env__args": env, **changes},
        judged=judged,
    )


_TOOLS: dict[str, Any] = {
    "chat__tool_parser": "fenced_code",
    "chat__reply_prefix": CALL,
    "rollout__max_turn_tokens": 128,
    "rollout__max_response_tokens": 300,
    "rollout__max_context_tokens": 500,
}
_PPO: dict[str, Any] = {
    "algorithm__preset": "ppo",
    "algorithm__old_log_probs": "recompute",
    "rollout__n_samples_per_prompt": 4,
    "rollout__prompts_per_step": 8,
}
_AHEAD: dict[str, Any] = {
    "schedule__staleness_threshold": 1.0,
    "schedule__partial_rollout": True,
    "algorithm__old_log_probs": "recompute",
}

SCENARIOS: tuple[Scenario, ...] = (
    _healthy("dr_grpo"),
    _healthy("grpo_kl", algorithm__preset="grpo", algorithm__kl_coef=0.01),
    _healthy("rloo", algorithm__preset="rloo", run__seed=2),
    _healthy("reinforce", algorithm__preset="reinforce++", train__learning_rate=1e-4),
    _healthy("gspo", algorithm__preset="gspo", run__seed=3),
    _healthy("ppo", **_PPO, critic__learning_rate=3e-3, critic__warmup_steps=3),
    _healthy("noise", env={"noise": 0.1}, run__seed=4),
    _healthy("turns", env={"turns": 2}),
    _healthy("tools", **_TOOLS, env__tools=["works.py:python"]),
    _healthy("ahead", **_AHEAD, algorithm__is_correction_type="tis", train__learning_rate=1e-4),
    _healthy("epochs", algorithm__old_log_probs="recompute", train__minibatches=2,
             train__epochs_per_batch=2, train__learning_rate=5e-5),
    _healthy("slow", train__learning_rate=5e-5, run__seed=5),
    _fault("length", "length_hacking decoupling", "length", env={"judges": "colours"},
           algorithm__kl_coef=0.0001),
    _fault("hacked", "decoupling", env={"judges": "noun"}, train__learning_rate=3e-4),
    _fault("judged", "judge_hacking", "noun", judged=True, reward__env_weight=0.0,
           train__learning_rate=3e-4),
    _fault("collapse", "entropy_collapse pattern_collapse", "one_sentence",
           env={"judges": "noun"}, train__learning_rate=2e-3, train__steps=60),
    _fault("junk", "gibberish entropy_explosion", "junk", env={"judges": "colours"},
           algorithm__kl_coef=0.0001, train__learning_rate=1e-3),
    _fault("loops", "repetition", "words_again", env={"judges": "noun"},
           train__learning_rate=1e-3, train__steps=60),
    _fault("broken_tool", "tool_errors", **_TOOLS, env__tools=["broken.py:python"]),
    _fault("stale", "sampler_learner_gap", schedule__staleness_threshold=8.0,
           schedule__partial_rollout=True, algorithm__old_log_probs="recompute",
           train__learning_rate=3e-3),
    _fault("rate_x100", "reward_fall entropy_explosion entropy_collapse clip_fraction gibberish "
           "reward_flat kl_too_large grad_norm", train__learning_rate=2e-2,
           algorithm__kl_coef=0.0001),
    _fault("all_equal", "empty_gradient reward_flat", "half"),
    _fault("all_zero", "reward_flat empty_gradient", "nothing"),
    _fault("critic", "value_divergence", **_PPO, critic__learning_rate=0.3,
           critic__value_clip=None, train__learning_rate=1e-4),
    _fault("critic_scale", "value_divergence", **_PPO, critic__learning_rate=2.0,
           train__learning_rate=2e-4, run__seed=3),
    _fault("crashes", "infrastructure", env={"crashes_after": 500}, train__learning_rate=2e-4),
    _fault("fewer_turns", "turns_collapse decoupling", env={"judges": "noun", "turns": 3,
           "ends_on": "green"}, train__learning_rate=1e-3),
    _fault("cut_off", "truncation", rollout__max_turn_tokens=16, rollout__max_response_tokens=16),
    _fault("many_updates", "clip_fraction kl_too_large reward_fall", train__epochs_per_batch=4,
           train__minibatches=4, train__learning_rate=4e-3, algorithm__old_log_probs="recompute",
           algorithm__kl_coef=0.0001),
)  # fmt: skip
"""Every recorded run but the quickstart's own."""
