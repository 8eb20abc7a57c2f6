"""Everything about a run that can be checked before a model is loaded.

`agentrl train --dry-run` asks whether the run can begin; `agentrl preflight` asks besides whether
it can work: what the reward pays for, whether calls come back as they were written, and what a
standard setup has that this one has not. Every check runs, whatever the others found, so that one
look shows all there is to fix.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.plan import Plan
from agentrl.config.schema import RolloutSection
from agentrl.engine import TURN_LIMIT_S
from agentrl.preflight.checks import machine, parts, prompts, setup, trials
from agentrl.preflight.checks.choice import choice
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.judges import judges, judges_with_labels
from agentrl.preflight.checks.reward_models import reward_models
from agentrl.preflight.checks.side_model import NAME as SIDE_MODEL
from agentrl.preflight.checks.side_model import side_model
from agentrl.preflight.checks.teacher import teacher
from agentrl.preflight.reward.answer_player import REPEATS_S
from agentrl.preflight.reward.known_answers import IN_FLIGHT, MORE_TASKS, TASKS, AnswerKind
from agentrl.preflight.reward.samples import SampleRequest
from agentrl.preflight.runner import COMMON, CheckPlan, Limit, Step
from agentrl.runtime.assembly.teacher import teacher_section
from agentrl.runtime.checks import algorithm as algorithm_checks
from agentrl.runtime.checks import fleet as fleet_checks
from agentrl.runtime.launch import in_flight

_MARGIN_S = 5.0
"""Beyond the limit of one call, after which the rollout loop would have given up on it."""
_IMPORT_S = 300.0
"""More for lines that import code of the user, which may load much, once."""
_JUDGE_S = 1800.0
"""Limit for judging all labelled answers."""
_LOAD_S = 1800.0
"""Limit for loading a model."""


def dry_run_plan(run: Plan, *, found: PreflightFacts, resume: bool) -> CheckPlan:
    """The checks whether a run can begin; no model is loaded.

    Args:
        run: the run.
        found: filled on the way.
        resume: whether a run directory that already holds a run is what is wanted.
    """
    checks = _Checks(run, found, resume)
    steps = [*checks.parts(), *checks.places()]
    return CheckPlan(steps=steps, limits=_limits(run.rollouts.rollout))


def full_plan(
    run: Plan,
    *,
    found: PreflightFacts,
    resume: bool = False,
    samples: SampleRequest | None = None,
) -> CheckPlan:
    """The checks whether a run can begin, and whether it can work.

    Args:
        run: the run.
        found: filled on the way; `answers` holds what was tried on the reward code.
        resume: whether a run directory that already holds a run is what is wanted.
        samples: what a model is to write, so that one sees what it earns; None loads no model.
    """
    checks = _Checks(run, found, resume)
    sampled = [] if samples is None else [checks.samples(samples)]
    steps = [*checks.parts(), *checks.trials(), *sampled, *checks.setup(), *checks.places()]
    limits = _limits(run.rollouts.rollout)
    if samples is not None:
        limits["reward samples"] = _sample_limit(
            run.rollouts.rollout,
            samples.count,
            at_once=in_flight(run.engines, run.schedule.schedule),
        )
    return CheckPlan(steps=steps, limits=limits)


@dataclass(frozen=True, slots=True)
class _Checks:
    """The checks of a run by group; each gets the records and sections that it looks at."""

    run: Plan
    found: PreflightFacts
    resume: bool

    def parts(self) -> list[Step]:
        """What the run is made of."""
        run, found = self.run, self.found
        rollouts = run.rollouts
        models: list[Step] = [
            ("reward models", lambda: reward_models(run.rewards, run.schedule, found))
        ]
        taught: list[Step] = [("teacher", lambda: teacher(run.trainer, found))]
        return [
            ("model", lambda: parts.model(rollouts.model, found)),
            ("tools", lambda: parts.tools(rollouts)),
            ("environment", lambda: parts.environment(rollouts, found)),
            ("chat", lambda: parts.chat(rollouts, found)),
            (
                "datasets",
                lambda: parts.datasets(run.tasks, rollouts, run.schedule.run, found, self.resume),
            ),
            ("prompts", lambda: prompts.prompts(rollouts, found)),
            ("sandbox", lambda: parts.sandbox(rollouts, found)),
            ("rewards", lambda: parts.rewards(run.rewards)),
            *(models if rollouts.reward.models else []),
            ("algorithm", lambda: algorithm_checks.algorithm(run.trainer, run.schedule)),
            *(taught if teacher_section(run.trainer) is not None else []),
            ("trainer", lambda: parts.trainer(run.trainer, found)),
        ]

    def trials(self) -> list[Step]:
        """What is tried out."""
        run, found = self.run, self.found
        rollouts, limits = run.rollouts, run.rollouts.rollout
        judged: list[Step] = [("judges", lambda: judges(run.rewards))]
        asked: list[Step] = [(SIDE_MODEL, lambda: side_model(limits))]
        return [
            ("template", lambda: trials.template(found)),
            ("tool calls", lambda: trials.tool_calls(rollouts.chat, found)),
            ("reward test", lambda: trials.reward_test(rollouts, run.schedule.run.seed, found)),
            ("leak", lambda: prompts.leak(found)),
            ("grading time", lambda: trials.grading_time(limits, found)),
            ("sandbox run", lambda: trials.sandbox_run(rollouts, found)),
            *(judged if judges_with_labels(rollouts.reward) else []),
            *(asked if not isinstance(limits.side_calls, str) else []),
        ]

    def samples(self, request: SampleRequest) -> Step:
        """What a model earns."""
        return "reward samples", lambda: trials.samples(self.run, self.found, request)

    def setup(self) -> list[Step]:
        """What a standard setup has."""
        plan, trainer, found = self.run.schedule, self.run.trainer, self.found
        algorithm, health, evaluated = plan.algorithm, plan.health, plan.eval
        return [
            ("batch", lambda: setup.batch(algorithm, plan.rollout, plan.train)),
            ("choice", lambda: choice(plan, trainer.critic, self.run.tasks, found)),
            ("normalisation", lambda: setup.normalisation(algorithm, plan.reward, found)),
            ("kl", lambda: setup.kl(algorithm, health)),
            ("evaluation", lambda: setup.evaluation(evaluated, plan.train, found)),
            (
                "early stop",
                lambda: setup.early_stop(algorithm, health, datasets=evaluated.datasets),
            ),
            ("async", lambda: setup.asynchrony(trainer, plan.schedule)),
            ("critic", lambda: setup.critic(trainer)),
        ]

    def places(self) -> list[Step]:
        """Where it runs, and how much it needs there."""
        plan, trainer, found = self.run.schedule, self.run.trainer, self.found
        engines = self.run.engines
        model, tokens = trainer.model, plan.rollout.max_context_tokens
        return [
            ("schedule", lambda: fleet_checks.schedule(plan, engines)),
            (
                "engines",
                lambda: fleet_checks.engines(
                    engines, tokenizer=found.tokenizer, train=trainer.train
                ),
            ),
            ("cluster", lambda: fleet_checks.cluster(engines)),
            ("run directory", lambda: parts.run_directory(plan.run, self.resume)),
            ("rules", lambda: parts.rules(plan.health, datasets=plan.eval.datasets)),
            ("metrics", lambda: parts.metrics(trainer.log)),
            ("disk", lambda: machine.disk(plan, trainer)),
            ("context", lambda: machine.context(model, tokens)),
            ("memory", lambda: machine.memory(trainer, engines, self.run.rewards)),
            ("budget", lambda: parts.budget(plan.rollout, plan.train, found)),
        ]


def _limits(rollout: RolloutSection) -> dict[str, Limit]:
    """Seconds that each check may take; `COMMON` for those that are not named."""
    call_s = rollout.env_timeout_s + _MARGIN_S
    imported = Limit(still_s=call_s + _IMPORT_S, total_s=call_s + _IMPORT_S)
    # Two rounds are always made; there are no retries, but what is counted with them is no less.
    rounds = -(-(2 * TASKS * len(AnswerKind) + MORE_TASKS) // IN_FLIGHT)
    answers_s = rounds * _episode_s(rollout) + REPEATS_S
    return {
        "tools": imported, "environment": imported, "rewards": imported,
        "prompts": Limit(still_s=call_s, total_s=prompts.SAMPLE_S + 2 * call_s),
        "judges": Limit(still_s=call_s, total_s=_JUDGE_S),
        SIDE_MODEL: Limit(still_s=_JUDGE_S, total_s=_JUDGE_S),
        "reward test": Limit(still_s=call_s, total_s=COMMON.total_s + answers_s),
    }  # fmt: skip


def _sample_limit(rollout: RolloutSection, samples: int, *, at_once: int) -> Limit:
    """Only samples wait for a model; the reward test plays written answers."""
    turns_s = rollout.max_assistant_turns * TURN_LIMIT_S * (1 + rollout.retries)
    samples_s = _LOAD_S + -(-samples // at_once) * (_episode_s(rollout) + turns_s)
    return Limit(still_s=max(_LOAD_S, TURN_LIMIT_S), total_s=samples_s)


def _episode_s(rollout: RolloutSection) -> float:
    return rollout.timeout_s * (1 + rollout.retries) + _MARGIN_S
