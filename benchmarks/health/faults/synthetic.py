"""Synthetic streams: curves of a healthy run with noise, and what each fault does to them.

Every stream is drawn from its own seed, with its own length, levels and noise, so that none is a
copy of another. Shapes follow what the guide describes (7.1, 7.2) and what recorded runs look like.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agentrl.health import History, RolloutFacts, series_of

Curve = Callable[[float], float]
"""From the share of the run that is over, 0 to 1, to a level."""

_LIST = (
    "the value list sort key return count find every number result first then check index while "
    "string answer compare total length split loop range sum item part node left right step read "
    "write open file line word letter table row column name user time date price order"
)
_WORDS = _LIST.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One labelled history."""

    name: str
    """Says what happens in it."""
    expected: frozenset[str]
    """Detectors of which one at least has to speak; empty for a healthy run, where none may."""
    history: History
    """What detectors are given."""


class Draft:
    """The curves of one run while it is being made up."""

    def __init__(self, name: str, steps: int = 80, noise: float = 1.0, every: int = 10) -> None:
        """Begin with a healthy run of so many steps, evaluated `every` so many."""
        self.rng = random.Random(name)
        self.steps, self.noise, self.every = steps, noise, every
        self.curves: dict[str, dict[int, float]] = {}
        self.config: dict[str, object] = {"train.learning_rate": 1e-6, "train.max_grad_norm": 1.0}
        self.facts: list[RolloutFacts] = []
        start, gain = self.rng.uniform(0.1, 0.4), self.rng.uniform(0.25, 0.5)
        self.curve("reward", lambda t: start + gain * (1 - math.exp(-3 * t)), 0.03)
        self.curves["score"] = dict(self.curves["reward"])
        self.curve("reward_std", lambda t: 0.35 - 0.1 * t, 0.03)
        self.curve("frac_reward_zero_std", lambda t: 0.3 - 0.1 * t, 0.08, low=0, high=1)
        opening = self.rng.uniform(0.5, 2.0)
        self.curve("entropy", lambda t: opening * (1 - 0.6 * t), 0.03 * opening, low=0.01)
        self.curve("clip_ratio/region_mean", lambda t: 0.01, 0.004, low=0)
        tokens = self.rng.uniform(200, 800)
        self.curve("completions/mean_length", lambda t: tokens * (1 + 0.2 * t), 0.05 * tokens)
        self.curve("completions/clipped_ratio", lambda t: 0.12, 0.03, low=0, high=1)
        self.curve("train/grad_norm", lambda t: 0.3, 0.08, low=0.01)
        self.curve("train/loss", lambda t: 0.02, 0.02)
        self.curve("sampling/sampling_logp_difference/mean", lambda t: 0.015, 0.003, low=0)
        self.curve("rollout_corr/ess", lambda t: 0.996, 0.001, high=1)
        self.curve("rollout_corr/ratio_min", lambda t: 0.5, 0.1, low=0.05)
        self.curve("rollout_corr/ratio_max", lambda t: 1.7, 0.2, low=1)
        self.curve("num_turns/mean", lambda t: 3.0, 0.2, low=1)
        self.curve("tools/call_frequency", lambda t: 2.2, 0.2, low=0)
        self.curve("tools/failure_frequency", lambda t: 0.15 - 0.1 * t, 0.03, low=0)
        self.curve("rollout/started", lambda t: 64.0, 0.0)
        self.curve("rollout/termination/sandbox_failed", lambda t: 0.0, 0.0)
        self.evaluate(lambda t: start - 0.05 + 0.85 * gain * (1 - math.exp(-3 * t)))

    def curve(
        self, name: str, level: Curve, noise: float, low: float = -1e9, high: float = 1e9
    ) -> None:
        """Draw a curve around `level`."""
        self.curves[name] = {
            step: min(
                high, max(low, level(step / self.steps) + self.rng.gauss(0, noise * self.noise))
            )
            for step in range(1, self.steps + 1)
        }

    def evaluate(self, level: Curve | None, half: float = 0.05) -> None:
        """Held-out scores with a 95 % interval of that half width; None for no evaluation."""
        for name in [name for name in self.curves if name.startswith("eval/")]:
            del self.curves[name]
        if level is None:
            return
        for step in range(0, self.steps + 1, self.every):
            score = level(step / self.steps) + self.rng.gauss(0, half / 1.96)
            for end, value in (("", score), ("_low", score - half), ("_high", score + half)):
                self.curves.setdefault(f"eval/held/score{end}", {})[step] = value

    def pay_for(self, part: str) -> None:
        """Make the reward the score of the environment and a part beside it."""
        score, liked = self.curves["score"], self.curves[f"rewards/{part}/mean"]
        self.curves["reward"] = {step: score[step] + liked[step] for step in score}

    def write(self, text: Callable[[Draft, int, int], str], reward: Curve | None = None) -> None:
        """Rollouts of some steps: 8 tasks, 4 siblings; `text` is given the task and the sibling."""
        spots = sorted({1, 2, 3, *range(4, self.steps, max(1, self.steps // 6)), self.steps - 2,
                        self.steps - 1, self.steps})  # fmt: skip
        for step in spots:
            self.progress = step / self.steps
            for task in range(8):
                for sibling in range(4):
                    self._rollout(step, task, sibling, text(self, step * 8 + task, sibling), reward)

    def _rollout(
        self, step: int, task: int, sibling: int, words: str, reward: Curve | None
    ) -> None:
        worth = float(self.rng.random() < 0.5) if reward is None else reward(self.progress)
        self.facts.append(
            RolloutFacts(
                step=step,
                kind="train",
                task_id=f"task-{step}-{task}",
                group_id=f"{step}/{task}",
                rollout_id=f"{step}/{task}/{sibling}",
                reward=worth,
                score=min(1.0, max(0.0, worth)),
                advantage=0.0,
                termination="env_done",
                action_tokens=len(words),
                duration_s=1.0,
                turns=2,
                tool_calls=1,
                tool_errors=0,
                text=words,
            )
        )

    def pay_for_length(self) -> None:
        """Give longer siblings the higher reward."""
        longest = max(fact.action_tokens for fact in self.facts)
        self.facts = [
            replace(fact, reward=fact.action_tokens / longest + self.rng.gauss(0, 0.02))
            for fact in self.facts
        ]

    def done(self, name: str, expected: str) -> Stream:
        """The stream."""
        curves, broken = series_of(self.curves)
        return Stream(
            name=name,
            expected=frozenset(expected.split()),
            history=History(
                metrics=curves, rollouts=tuple(self.facts), config=self.config, not_finite=broken
            ),
        )


def prose(draft: Draft, task: int, sibling: int) -> str:
    """An answer that depends on its task, in ordinary words."""
    words = random.Random(task)
    own = words.sample(_WORDS, 12)
    count = draft.rng.randint(15, 40)
    return " ".join(draft.rng.choice(own if draft.rng.random() < 0.8 else _WORDS)
                    for _ in range(count))  # fmt: skip


def template(draft: Draft, task: int, sibling: int) -> str:
    """Prose at first; later the same words for every task."""
    if draft.rng.random() > 2 * draft.progress:
        return prose(draft, task, sibling)
    return f"Great question! Let me think step by step. The answer is {draft.rng.randint(1, 99)}."


def formed(draft: Draft, task: int, sibling: int) -> str:
    """Prose at first; later one form for all tasks, in which siblings give the same answer."""
    if draft.rng.random() > 2 * draft.progress:
        return prose(draft, task, sibling)
    words = " and ".join(random.Random(task).sample(_WORDS, 3))
    return f"Let me think about this step by step first. So the answer to it is {words}."


def noise_text(draft: Draft, task: int, sibling: int) -> str:
    """Prose at first; later letters that spell nothing, and an answer tag."""
    if draft.rng.random() > 2 * draft.progress:
        return prose(draft, task, sibling)
    signs = "abcdefghijklmnopqrstuvwxyz0123456789{}[]<>/#@!?%&*+="
    return "".join(draft.rng.choice(signs) for _ in range(160)) + f"<answer>{task}</answer>"


def looping(draft: Draft, task: int, sibling: int) -> str:
    """Prose at first; later one phrase over and over."""
    if draft.rng.random() > 2 * draft.progress:
        return prose(draft, task, sibling)
    return f"so we check the {random.Random(task).choice(_WORDS)} again and " * 12


def growing(draft: Draft, task: int, sibling: int) -> str:
    """More and more of the same task's words."""
    length = int((20 + 120 * draft.progress) * draft.rng.uniform(0.5, 1.5))
    return " ".join(draft.rng.choice(_WORDS) for _ in range(length))


Planted = Callable[[Draft], None]
Plan = Mapping[str, tuple[str, dict[str, float], Planted]]
"""Name of a stream to the detectors expected, the draft's arguments and what is done to it."""


def drawn(plan: Plan) -> list[Stream]:
    """All streams of a plan."""
    streams: list[Stream] = []
    for name, (expected, arguments, plant) in plan.items():
        draft = Draft(name, **arguments)  # type: ignore[arg-type]
        plant(draft)
        streams.append(draft.done(name, expected))
    return streams
