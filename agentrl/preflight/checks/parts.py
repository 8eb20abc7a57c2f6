"""Checks of the parts of a run: each of them resolved, made and tried without loading the model.

Imports inside functions keep torch and transformers away until a check needs them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection

from agentrl.chat import build_chat, build_parser
from agentrl.config.health import HealthSection
from agentrl.config.plan import RewardPlan, RolloutPlan, TaskPlan, TrainerPlan
from agentrl.config.schema import (
    LogSection,
    ModelSection,
    RolloutSection,
    RunSection,
)
from agentrl.config.training import TrainSection
from agentrl.disk.metric_sinks import check_sinks
from agentrl.disk.model_source import model_source, named_source
from agentrl.disk.run_name import CHOSEN_FILE, free_name, holds_a_run, run_path
from agentrl.errors import RunError
from agentrl.gateway.program import ProgramAgent
from agentrl.models.device import pick_device
from agentrl.models.source import (
    check_language_model,
    check_model_path,
    load_tokenizer,
)
from agentrl.models.vision.checks import check_seeing
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.reward import load_reward_functions
from agentrl.runtime.assembly.parts import load_task_sets, make_env_factory, open_sandboxes
from agentrl.runtime.assembly.policy_check import check_policy
from agentrl.runtime.assembly.sandbox_port import require_port
from agentrl.runtime.assembly.task_choice import dataset_sections, read_chosen
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.checks.task_faults import check_labels, limit_prompts
from agentrl.runtime.health.rules import check_health
from agentrl.sandbox import Isolation
from agentrl.types.finding import Finding, Status, warn


async def model(section: ModelSection, found: PreflightFacts) -> Finding | str:
    """Load the tokenizer and choose the device."""
    from agentrl.models.vision.reader import load_reader

    path = named_source(section)
    check_model_path(path)
    check_language_model(path)
    device = pick_device(section.device)
    tokenizer = load_tokenizer(section.model_copy(update={"path": path}))
    found.tokenizer = tokenizer
    found.images = load_reader(model_source(section, path=path), tokenizer)
    seen = "" if found.images is None else f", images as {found.images.family.name}"
    return f"{path}: tokenizer with {len(tokenizer)} entries{seen}; will compute on {device}"


async def tools(plan: RolloutPlan) -> str:
    """The tools of the config, opened."""
    async with open_tools(plan.env, base=plan.base) as tools:
        return ", ".join(tool.name for tool in tools) or "none in the config"


async def environment(plan: RolloutPlan, found: PreflightFacts) -> str:
    """Make the environment class once, with the model that answers its side calls."""
    found.make_env = make_env_factory(plan.env, base=plan.base, rollout=plan.rollout)
    return f"{plan.env.target} imports and can be made"


async def rewards(plan: RewardPlan) -> str:
    """Load the reward functions and state the sum of the reward."""
    section = plan.reward
    load_reward_functions(section, base=plan.base, timeout_s=plan.rollout.env_timeout_s)
    added = {**section.functions, **section.models}
    weights = {"env": section.env_weight, **{name: item.weight for name, item in added.items()}}
    parts = [f"{weight:g} * {name}" for name, weight in weights.items()]
    apart = {"functions", "models", "env_weight"}
    changed = section.model_dump(exclude_defaults=True, exclude=apart)
    return "; ".join([" + ".join(parts), *(f"{name} {value}" for name, value in changed.items())])


async def trainer(plan: TrainerPlan, found: PreflightFacts) -> str:
    """Check that the trainer can be put together."""
    from agentrl.runtime.assembly.trainer import check_learner

    if found.images is not None:
        check_seeing(plan)
    return check_learner(plan)


async def chat(plan: RolloutPlan, found: PreflightFacts) -> Finding | str:
    """Template and parser, proven on probe conversations."""
    section = plan.chat
    parser = build_parser(section.tool_parser, base=plan.base)
    if found.tokenizer is None:
        return warn("chat", "parser is known; the template needs the tokenizer above", "mend model")
    found.chat = chat = build_chat(found.tokenizer, section, images=found.images)
    source, context = model_source(plan.model), plan.rollout.max_context_tokens
    await asyncio.to_thread(check_policy, source, plan.model, section, context=context)
    if parser is None and plan.env.tools:
        return warn(
            "chat",
            "env.tools names tools, but chat.tool_parser is none: no call is seen",
            "set chat.tool_parser: auto",
        )
    said = f"{section.tool_parser} tool parser"
    if chat.calls_note:
        said = f"tool calls as {chat.syntax.name}, {chat.calls_note}"
    return f"{chat.name} turns that end at {chat.ends()}; {said}"


async def datasets(
    plan: TaskPlan, rollouts: RolloutPlan, run: RunSection, found: PreflightFacts, resume: bool
) -> Finding | str:
    """Load every task of training and evaluation, and measure prompts where they are bounded."""
    sections = dataset_sections(plan)
    kept = run_path(run) / CHOSEN_FILE
    chosen = read_chosen(kept, sections, base=plan.base) if resume else None
    sets = load_task_sets(plan, chosen=chosen)
    check_labels(sets, rollouts)
    sets = limit_prompts(sets, rollouts, plan)
    found.tasks = sets
    counts = [f"train {len(sets.train)}"]
    counts += [f"{name} {len(tasks)}" for name, tasks in sets.evals.items()]
    text = "tasks: " + ", ".join(counts)
    if not sets.evals:
        return warn(
            "datasets",
            f"{text}; no eval.datasets, so nothing measures what is learned",
            "add eval.datasets.held_out: {source: ..., split: test}",
        )
    ids = {task.id for task in sets.train}
    for name, tasks in sets.evals.items():
        shared = sum(task.id in ids for task in tasks)
        if 0 < shared < len(tasks):
            return warn(
                "datasets",
                f"{text}; {name} shares {shared} task ids with training",
                f"take another split or limit in eval.datasets.{name}",
            )
    return text


async def sandbox(plan: RolloutPlan, found: PreflightFacts) -> Finding | str:
    """Probe the sandbox backend: does it work here, how strong is it, has it what the env needs."""
    backend = await open_sandboxes(plan.sandbox, base=plan.base)
    try:
        probe = await backend.probe()
        if probe.available and found.make_env and isinstance(found.make_env(), ProgramAgent):
            await require_port(backend)
    finally:
        await backend.close()
    text = f"{backend.name}: {probe.detail}"
    if not probe.available:
        return Finding(name="sandbox", status=Status.FAIL, detail=text)
    if probe.isolation is Isolation.WEAK:
        return warn(
            "sandbox",
            f"{text}; isolation is weak: run only code you would run yourself",
            "agentrl sandbox list says what stronger ones need",
        )
    return text


async def run_directory(run: RunSection, resume: bool) -> Finding | str:
    """Check that the run may be written where the config asks."""
    path = run_path(run)
    if holds_a_run(path) and not resume:
        raise RunError(
            f"{path} already holds a run; continue it with --resume, or start another with "
            f"run.name={free_name(path)}"
        )
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise RunError(f"{path} cannot be made: {existing} is not a writable folder")
    return f"{path} is free" if not holds_a_run(path) else f"{path} will be resumed"


async def rules(section: HealthSection, *, datasets: Collection[str]) -> str:
    """Read the rules that may end or hold the run.

    Raises:
        ConfigError: a rule or a threshold that cannot be read.
    """
    rules = check_health(section, datasets=datasets)
    return "; ".join(rule.text for rule in rules) or "none"


async def metrics(section: LogSection) -> str:
    """Check the sinks that metrics go to.

    Raises:
        ConfigError: a sink is wrong, or what it needs is not installed.
    """
    return check_sinks(section)


async def budget(
    rollout: RolloutSection, train: TrainSection, found: PreflightFacts
) -> Finding | str:
    """State the length of the run, and doubts about its step."""
    step = rollout.prompts_per_step * rollout.n_samples_per_prompt
    text = f"{train.steps} steps of {step} rollouts"
    if train.max_minutes:
        text += f", at most {train.max_minutes:g} minutes"
    if rollout.top_p < 1:
        return warn(
            "budget",
            f"{text}; rollout.top_p {rollout.top_p} is not what is trained on",
            "set rollout.top_p: 1.0",
        )
    if found.tasks is not None and rollout.prompts_per_step > len(found.tasks.train):
        return warn(
            "budget",
            f"{text}; a step takes more tasks than there are, so some come twice in it",
            f"set rollout.prompts_per_step: {len(found.tasks.train)}, or add tasks",
        )
    return text
