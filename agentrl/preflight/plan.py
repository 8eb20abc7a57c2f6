"""Everything about a run that can be checked before a model is loaded.

`agentrl train --dry-run` asks whether the run can begin; `agentrl preflight` asks besides whether
it can work: what the reward pays for, whether calls come back as they were written, and what a
standard setup has that this one has not. Every check runs, whatever the others found, so that one
look shows all there is to fix.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.config import RunConfig
from agentrl.engine import TURN_LIMIT_S
from agentrl.preflight.checks import (
    machine,
)
from agentrl.preflight.checks import (
    parts as preflight_parts,
)
from agentrl.preflight.checks import (
    prompts as preflight_prompts,
)
from agentrl.preflight.checks import (
    setup as preflight_setup,
)
from agentrl.preflight.checks import (
    trials as preflight_trials,
)
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.judges import judges, judges_with_labels
from agentrl.preflight.checks.reward_models import reward_models
from agentrl.preflight.checks.side_model import NAME as SIDE_MODEL
from agentrl.preflight.checks.side_model import side_model
from agentrl.preflight.checks.teacher import teacher
from agentrl.preflight.reward.answer_player import REPEATS_S
from agentrl.preflight.reward.known_answers import IN_FLIGHT, MORE_TASKS, TASKS, AnswerKind
from agentrl.preflight.reward.samples import SampleRequest
from agentrl.preflight.runner import COMMON, CheckPlan, Limit, Step, outcome_of
from agentrl.runtime.assembly.teacher import teacher_section
from agentrl.runtime.checks import algorithm as algorithm_checks
from agentrl.runtime.checks import fleet as fleet_checks
from agentrl.runtime.launch import in_flight
from agentrl.types.finding import Finding

_MARGIN_S = 5.0
"""Beyond the limit of one call, after which the rollout loop would have given up on it."""
_IMPORT_S = 300.0
"""More for lines that import code of the user, which may load much, once."""
_JUDGE_S = 1800.0
"""Limit for judging all labelled answers."""
_LOAD_S = 1800.0
"""Limit for loading a model."""


async def preflight(config: RunConfig, *, base: Path, resume: bool = False) -> list[Finding]:
    """Check that a run can begin, without loading its model. Never raises for what it finds.

    Args:
        config: the run.
        base: where relative paths of the config start.
        resume: whether a run directory that already holds a run is what is wanted.
    """
    return await _run(dry_run_plan(config, base=base, found=PreflightFacts(), resume=resume))


def dry_run_plan(
    config: RunConfig, *, base: Path, found: PreflightFacts, resume: bool
) -> CheckPlan:
    """The checks of `preflight`; `watchdog.run_watched` runs them, too."""
    steps = [*_parts(config, base, found, resume), *_places(config, base, found, resume)]
    return CheckPlan(steps=steps, limits=limits_of(config))


async def full_preflight(
    config: RunConfig,
    *,
    base: Path,
    found: PreflightFacts,
    resume: bool = False,
    samples: SampleRequest | None = None,
) -> list[Finding]:
    """Check that a run can begin and work. Never raises for what it finds.

    Args:
        config: the run.
        base: where relative paths of the config start.
        found: filled on the way; `answers` holds what was tried on the reward code.
        resume: whether a run directory that already holds a run is what is wanted.
        samples: what a model is to write, so that one sees what it earns; None loads no model.
    """
    return await _run(full_plan(config, base=base, found=found, resume=resume, samples=samples))


def full_plan(
    config: RunConfig,
    *,
    base: Path,
    found: PreflightFacts,
    resume: bool = False,
    samples: SampleRequest | None = None,
) -> CheckPlan:
    """The checks of `full_preflight`; `watchdog.run_watched` runs them, too."""
    trials: list[Step] = [
        ("template", lambda: preflight_trials.template(found)),
        ("tool calls", lambda: preflight_trials.tool_calls(config.chat, found)),
        ("reward test", lambda: preflight_trials.reward_test(config, base, found)),
        ("leak", lambda: preflight_prompts.leak(found)),
        ("grading time", lambda: preflight_trials.grading_time(config, found)),
        (
            "sandbox run",
            lambda: preflight_trials.sandbox_run(
                config.sandbox, base, found, timeout_s=config.rollout.env_timeout_s
            ),
        ),
    ]
    if judges_with_labels(config):
        trials.append(("judges", lambda: judges(config, base)))
    if not isinstance(config.rollout.side_calls, str):
        trials.append((SIDE_MODEL, lambda: side_model(config.rollout)))
    if samples is not None:
        trials.append(
            ("reward samples", lambda: preflight_trials.samples(config, base, found, samples))
        )
    algorithm = config.resolved_algorithm
    setup: list[Step] = [
        ("batch", lambda: preflight_setup.batch(algorithm(), config.rollout, config.train)),
        ("normalisation", lambda: preflight_setup.normalisation(algorithm(), config.reward, found)),
        ("kl", lambda: preflight_setup.kl(algorithm(), config.health)),
        ("evaluation", lambda: preflight_setup.evaluation(config.eval, config.train, found)),
        (
            "early stop",
            lambda: preflight_setup.early_stop(
                algorithm(), config.health, datasets=config.eval.datasets
            ),
        ),
        ("async", lambda: preflight_setup.asynchrony(config, base)),
        ("critic", lambda: preflight_setup.critic(algorithm(), config.critic, config.train, base)),
    ]
    parts = _parts(config, base, found, resume)
    return CheckPlan(
        steps=[*parts, *trials, *setup, *_places(config, base, found, resume)],
        limits=limits_of(config, samples=samples.count if samples else 0),
    )


def _parts(config: RunConfig, base: Path, found: PreflightFacts, resume: bool) -> list[Step]:
    parts = preflight_parts
    models: list[Step] = [("reward models", lambda: reward_models(config, base, found))]
    taught: list[Step] = [("teacher", lambda: teacher(config, base, found))]
    return [
        ("model", lambda: parts.model(config.model, found)),
        ("tools", lambda: parts.tools(config.env, base)),
        ("environment", lambda: parts.environment(config.env, config.rollout, base, found)),
        ("chat", lambda: parts.chat(config.chat, config.env, base, found)),
        ("datasets", lambda: parts.datasets(config, base, found, resume)),
        ("prompts", lambda: preflight_prompts.prompts(config, base, found)),
        ("sandbox", lambda: parts.sandbox(config.sandbox, base, found)),
        (
            "rewards",
            lambda: parts.rewards(config.reward, base, timeout_s=config.rollout.env_timeout_s),
        ),
        *(models if config.reward.models else []),
        ("algorithm", lambda: algorithm_checks.algorithm(config, base=base)),
        *(taught if teacher_section(config) is not None else []),
        ("trainer", lambda: parts.trainer(config, base, found)),
    ]


def _places(config: RunConfig, base: Path, found: PreflightFacts, resume: bool) -> list[Step]:
    return [
        ("schedule", lambda: fleet_checks.schedule(config)),
        ("engines", lambda: fleet_checks.engines(config, base=base, tokenizer=found.tokenizer)),
        ("cluster", lambda: fleet_checks.cluster(config)),
        ("run directory", lambda: preflight_parts.run_directory(config.run, resume)),
        ("rules", lambda: preflight_parts.rules(config.health, datasets=config.eval.datasets)),
        ("metrics", lambda: preflight_parts.metrics(config.log)),
        ("disk", lambda: machine.disk(config)),
        ("context", lambda: machine.context(config.model, config.rollout.max_context_tokens)),
        ("memory", lambda: machine.memory(config, base)),
        ("budget", lambda: preflight_parts.budget(config.rollout, config.train, found)),
    ]


async def _run(plan: CheckPlan) -> list[Finding]:
    return [await outcome_of(name, check) for name, check in plan.steps]


def limits_of(config: RunConfig, samples: int = 0) -> dict[str, Limit]:
    """Seconds that each check may take; `COMMON` for those that are not named.

    Args:
        config: of the run.
        samples: that a model is to write.
    """
    rollout = config.rollout
    call_s = rollout.env_timeout_s + _MARGIN_S
    # The reward test plays written answers; only samples wait for a model.
    episode_s = rollout.timeout_s * (1 + rollout.retries) + _MARGIN_S
    turns_s = rollout.max_assistant_turns * TURN_LIMIT_S * (1 + rollout.retries)
    imported = Limit(still_s=call_s + _IMPORT_S, total_s=call_s + _IMPORT_S)
    # Two rounds are always made; there are no retries, but what is counted with them is no less.
    answers_s = -(-(2 * TASKS * len(AnswerKind) + MORE_TASKS) // IN_FLIGHT) * episode_s + REPEATS_S
    samples_s = _LOAD_S + -(-samples // in_flight(config)) * (episode_s + turns_s)
    return {
        "tools": imported, "environment": imported, "rewards": imported,
        "prompts": Limit(still_s=call_s, total_s=preflight_prompts.SAMPLE_S + 2 * call_s),
        "judges": Limit(still_s=call_s, total_s=_JUDGE_S),
        SIDE_MODEL: Limit(still_s=_JUDGE_S, total_s=_JUDGE_S),
        "reward test": Limit(still_s=call_s, total_s=COMMON.total_s + answers_s),
        "reward samples": Limit(still_s=max(_LOAD_S, TURN_LIMIT_S), total_s=samples_s),
    }  # fmt: skip
