"""A simulated run: groups of rollouts are sampled, and every metric follows from what they did.

A stream changes the plan (how likely success is, how long answers are, what entropy does) or single
curves; the noise then is that of the batch size, not one that somebody chose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config import load_config
from agentrl.config.plan import flat_config
from agentrl.health import History, RolloutFacts, sampled_steps, series_of
from blind.draws import Curve, Draw, decay, line, noisy
from blind.texts import math_text

Write = Callable[[np.random.Generator, float, bool], str]
"""Text of a rollout from randomness, the share of the run that is over, and whether it solved."""
_CONFIG = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
_SPREAD = 1.5
"""How much tasks differ in difficulty, in logits."""
_LENGTHS = 0.45
"""Deviation of the logarithm of lengths."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """What happens in a run; curves have one value a step."""

    success: Curve
    """Chance that a rollout of the training tasks solves its task."""
    held_out: Curve | None = None
    """The same for held-out tasks; None where it follows the training tasks."""
    entropy: Curve
    length: Curve
    kl: Curve
    prompts: int = 16
    group: int = 8
    cap: int = 2048
    tasks: int = 100
    """Held-out tasks of an evaluation; 0 for none."""
    eval_every: int = 0
    """Steps between evaluations; 0 for twenty evaluations in all."""
    turns: Curve | None = None
    """None for one turn and no tools."""
    gap: float = 0.012
    clip: float = 0.01
    grad: float = 0.4
    config: dict[str, Any] = field(default_factory=dict[str, Any])


def plain(draw: Draw, n: int, **changes: Any) -> Plan:
    """A run that learns: the plan which a stream then spoils, or not."""
    low, high = draw.between(0.2, 0.35), draw.between(0.55, 0.75)
    first = draw.between(0.5, 0.9)
    length = draw.between(250, 450)
    known: dict[str, Any] = {
        "success": decay(n, low, high, 0.3),
        "entropy": decay(n, first, first * 0.55, 0.35),
        "length": line(n, length, length * 1.15),
        "kl": decay(n, 0.0004, draw.between(0.03, 0.08), 0.4),
    }
    return Plan(**(known | changes))


class Run:
    """The curves of a run that a stream may still change.

    Args:
        draw: where the noise comes from.
        plan: what happens.
    """

    def __init__(self, draw: Draw, plan: Plan) -> None:
        self.draw, self.plan, self.n = draw, plan, len(plan.success)
        self.curves: dict[str, Curve] = {}
        self.at: dict[str, dict[int, float]] = {}
        self._sample()
        self._train()
        if plan.tasks:
            self._evaluate()

    def _sample(self) -> None:
        plan, rng, n = self.plan, self.draw.rng, self.n
        hard = np.clip(plan.success, 1e-9, 1 - 1e-9)
        logits = np.log(hard / (1 - hard))[:, None] + rng.normal(0, _SPREAD, (n, plan.prompts))
        chance = 1 / (1 + np.exp(-logits))
        solved = rng.binomial(plan.group, chance)
        share = solved / plan.group
        std = np.sqrt(share * (1 - share) * plan.group / max(1, plan.group - 1))
        rollouts = plan.prompts * plan.group
        lengths = plan.length[:, None] * np.exp(
            rng.normal(-(_LENGTHS**2) / 2, _LENGTHS, (n, rollouts))
        )
        cut = lengths >= plan.cap
        lengths = np.maximum(1, np.minimum(lengths, plan.cap)).round()
        self.curves |= {
            "reward": share.mean(1),
            "score": share.mean(1),
            "reward_std": std.mean(1),
            "frac_reward_zero_std": (std == 0).mean(1),
            "completions/mean_length": lengths.mean(1),
            "completions/min_length": lengths.min(1),
            "completions/max_length": lengths.max(1),
            "completions/clipped_ratio": cut.mean(1),
            "rollout/started": np.full(n, float(rollouts)),
            "rollout/dropped": np.zeros(n),
            "rollout/rows": np.full(n, float(rollouts)),
            "rollout/termination/env_done": (rollouts - cut.sum(1)).astype(float),
            "rollout/termination/max_tokens": cut.sum(1).astype(float),
            "num_turns/mean": np.ones(n),
            "batch/rows_trained": rollouts * (std != 0).mean(1),
            "batch/rows_zero_advantage": rollouts * (std == 0).mean(1),
            "batch/advantage_abs_mean": std.mean(1) * 0.8,
        }
        if plan.turns is not None:
            turns = np.maximum(1.0, plan.turns + rng.normal(0, 0.5 / rollouts**0.5, n))
            self.curves |= {
                "num_turns/mean": turns,
                "tools/call_frequency": np.maximum(0.0, turns - 1),
                "tools/failure_frequency": rng.beta(3, 60, n),
                "tools/parse_error_frequency": rng.beta(1, 120, n),
            }

    def _train(self) -> None:
        plan, draw, n = self.plan, self.draw, self.n
        small = 1 / np.sqrt(plan.prompts * plan.group)
        gap = noisy(draw, np.full(n, plan.gap), 0.1)
        clip = noisy(draw, np.full(n, plan.clip), 0.3)
        signal = 1 - self.curves["frac_reward_zero_std"]
        grad = noisy(draw, plan.grad * np.sqrt(np.maximum(signal, 0.0)), 0.2)
        self.curves |= {
            "entropy": noisy(draw, plan.entropy, 0.4 * small),
            "kl": noisy(draw, plan.kl, 0.1),
            "train/grad_norm": grad,
            "train/loss": draw.rng.normal(0, 0.01, n),
            "train/learning_rate": np.full(n, 1e-6),
            "train/updates": np.ones(n),
            "train/ratio_mean": draw.rng.normal(1, 5e-4, n),
            "clip_ratio/region_mean": clip,
            "clip_ratio/low_mean": clip * 0.4,
            "clip_ratio/high_mean": clip * 0.6,
            "sampling/sampling_logp_difference/mean": gap,
            "sampling/sampling_logp_difference/max": noisy(draw, 25 * gap, 0.3),
            "sampling/importance_sampling_ratio/mean": draw.rng.normal(1, 1e-3, n),
            "sampling/importance_sampling_ratio/min": np.exp(-noisy(draw, 15 * gap, 0.3)),
            "sampling/importance_sampling_ratio/max": np.exp(noisy(draw, 15 * gap, 0.3)),
            "rollout_corr/kl": gap**2,
            "rollout_corr/ess": 1 / (1 + 4 * gap**2),
            "rollout_corr/ratio_max": np.exp(noisy(draw, 15 * gap, 0.3)),
            "timing_s/step": noisy(draw, np.full(n, 60.0), 0.1),
        }

    def _evaluate(self) -> None:
        plan, rng = self.plan, self.draw.rng
        every = plan.eval_every or max(5, self.n // 20)
        chance = plan.success if plan.held_out is None else plan.held_out
        for step in sorted({0, *range(every, self.n + 1, every), self.n}):
            right = rng.binomial(plan.tasks, min(1.0, max(0.0, chance[max(0, step - 1)])))
            share, half = right / plan.tasks, 0.98 / plan.tasks**0.5
            self.put("eval/held_out/score", step, share)
            self.put("eval/held_out/score_low", step, max(0.0, share - half))
            self.put("eval/held_out/score_high", step, min(1.0, share + half))

    def put(self, name: str, step: int, value: float) -> None:
        """One value of a metric that not every step has, or over one that it has."""
        self.at.setdefault(name, {})[step] = value

    def drop(self, *prefixes: str) -> None:
        """Leaves out metrics, as a run does that does not compute them."""
        self.curves = {k: v for k, v in self.curves.items() if not k.startswith(prefixes)}
        self.at = {k: v for k, v in self.at.items() if not k.startswith(prefixes)}

    def keep(self, *prefixes: str) -> None:
        """Leaves out all others."""
        self.curves = {k: v for k, v in self.curves.items() if k.startswith(prefixes)}
        self.at = {k: v for k, v in self.at.items() if k.startswith(prefixes)}

    def history(self, write: Write | None = math_text) -> History:
        """What a detector is given; without `write`, no rollouts were stored."""
        values: dict[str, dict[int, float]] = {
            name: dict(enumerate(map(float, curve), start=1)) for name, curve in self.curves.items()
        }
        for name, found in self.at.items():
            values.setdefault(name, {}).update(found)
        metrics, broken = series_of(values)
        return History(
            metrics=metrics,
            rollouts=[] if write is None else self._rollouts(write),
            config=_config() | self._own_config(),
            not_finite=broken,
        )

    def _own_config(self) -> dict[str, Any]:
        plan = self.plan
        turns = 1 if plan.turns is None else round(max(plan.turns)) + 4
        own: Mapping[str, Any] = {
            "rollout.prompts_per_step": plan.prompts,
            "rollout.n_samples_per_prompt": plan.group,
            "rollout.max_response_tokens": plan.cap,
            "rollout.max_turn_tokens": plan.cap,
            "rollout.max_context_tokens": plan.cap + 1024,
            "rollout.max_assistant_turns": turns,
            "train.steps": self.n,
            "train.learning_rate": 1e-6,
            "algorithm.kl_coef": 0.001,
            "algorithm.horizon": plan.cap,
            "chat.system_prompt": "",
            "chat.reply_prefix": "",
        }
        return {**own, **plan.config}

    def _rollouts(self, write: Write) -> list[RolloutFacts]:
        plan, rng = self.plan, self.draw.rng
        found: list[RolloutFacts] = []
        for step in sampled_steps(range(1, self.n + 1)):
            i, over = step - 1, step / self.n
            for prompt in range(min(plan.prompts, max(2, 64 // plan.group))):
                p = np.clip(self.curves["score"][i] if "score" in self.curves else 0.5, 0, 1)
                for sample in range(plan.group):
                    solved = bool(rng.random() < p)
                    found.append(
                        self._facts(step, prompt, sample, solved, write(rng, over, solved))
                    )
        return found

    def _facts(self, step: int, prompt: int, sample: int, solved: bool, text: str) -> RolloutFacts:
        plan, rng, i = self.plan, self.draw.rng, step - 1
        tokens = plan.length[i] * np.exp(rng.normal(-(_LENGTHS**2) / 2, _LENGTHS))
        calls = max(0, round(rng.normal(plan.turns[i] - 1, 0.7))) if plan.turns is not None else 0
        failed = self.curves.get("tools/failure_frequency", np.zeros(self.n))[i]
        group = f"g{step}-{prompt}"
        return RolloutFacts(
            step=step,
            kind="train",
            task_id=f"t{(step * plan.prompts + prompt) % 997}",
            group_id=group,
            rollout_id=f"{group}-{sample}",
            reward=float(solved),
            score=float(solved),
            advantage=float(solved) - plan.success[i],
            termination="max_tokens" if tokens >= plan.cap else "env_done",
            action_tokens=int(max(1, min(tokens, plan.cap))),
            duration_s=20.0,
            turns=calls + 1,
            tool_calls=calls,
            tool_errors=int(rng.binomial(calls, min(1.0, failed))),
            text=text,
        )


@cache
def _config() -> dict[str, Any]:
    return flat_config(load_config(_CONFIG))
