"""Trials before a run: the template, calls of every tool, the reward, a sandbox."""

from __future__ import annotations

import time
from dataclasses import replace

from agentrl.chat import build_parser
from agentrl.config.plan import Plan, RewardPlan, RolloutPlan
from agentrl.config.reward import RewardSection
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.errors import SandboxError, some_of
from agentrl.preflight.checks.facts import PreflightFacts, not_checked
from agentrl.preflight.checks.prompts import leak_of_prompts
from agentrl.preflight.reward.answer_player import try_answers
from agentrl.preflight.reward.known_answers import MORE_TASKS, TASKS, label_text, spread
from agentrl.preflight.reward.samples import SampleRequest, sample_rewards
from agentrl.preflight.reward.verdict import KnownTasks, common_label, judge_answers
from agentrl.reward import load_reward_functions
from agentrl.runtime.assembly.parts import open_sandboxes, sandbox_limits
from agentrl.sandbox import SandboxSpec
from agentrl.types import CallStatus, ToolCall
from agentrl.types.finding import Finding, fail, warn
from agentrl.types.schema_values import arguments_of

_AWKWARD = 'it\'s "quoted",\n\tGr\u00fc\u00dfe \u4e16\u754c <b> & {1}'
"""A string argument that careless writing or reading of calls damages."""
_ECHO = "from the sandbox"
_HELD_UP_S = 0.05
"""Of one grading; less is the loop's own work."""
_STANDS_S = 10.0
"""Of a step, in which no rollout goes on."""


async def template(found: PreflightFacts) -> Finding | str:
    """Report what appending turns to this template does not keep; `chat` proved plain turns."""
    if found.chat is None:
        return not_checked("template", found)
    if found.chat.name == "raw":
        return "none: texts are joined as they are"
    if found.chat.findings:
        return warn(
            "template",
            "; ".join(finding.detail for finding in found.chat.findings),
            "nothing if that is meant; else another template in the model's tokenizer",
        )
    return "turns appended one by one give the ids of the whole conversation"


async def tool_calls(section: ChatSection, found: PreflightFacts) -> Finding | str:
    """Write a call of every tool and check that the parser reads it back."""
    chat, parser = found.chat, build_parser(section.tool_parser)
    if chat is None:
        return not_checked("tool calls", found)
    parser = parser.for_chat(chat) if parser else None
    if parser is None:
        if not found.tools:
            return "no tools, no parser"
        return warn(
            "tool calls",
            f"{', '.join(found.tools)} are offered, but chat.tool_parser is none: no call is seen",
            "set chat.tool_parser: auto",
        )
    tools = [tool for tool in found.tools.values() if parser.names_tools or tool.name == "python"]
    if not tools:
        return f"{parser.name}: no tool of the config; the environment reads calls itself"
    for tool in tools:
        given = arguments_of(tool.parameters, texts=[_AWKWARD] * 3)[0]
        call = ToolCall(tool.name, given)
        text = parser.write(call)
        ids = (*chat.raw_delta(f"I call it.\n{text}", ended=False), chat.stop_token_ids[0])
        read = parser.parse(ids, chat, tools=tools).calls
        same = len(read) == 1 and read[0].name == tool.name and read[0].status is CallStatus.OK
        if not parser.names_tools:
            given = {"code": given.get("code", ""), "language": "python"}
        if not same or dict(read[0].arguments) != dict(given):
            got = read[0] if read else None
            return fail(
                "tool calls",
                f"a call of {tool.name} written as {text!r} is read as "
                f"{'nothing' if got is None else (got.status.value, got.name, got.arguments)}",
                f"take another chat.tool_parser than {parser.name}, or a template and tokenizer "
                "that keep its markers",
            )
    return f"{parser.name} reads back calls of {some_of((tool.name for tool in tools), 6)}"


async def reward_test(plan: RolloutPlan, seed: int, found: PreflightFacts) -> Finding | str:
    """Try answers of known worth through the loop, tools and sandbox of the run."""
    if found.chat is None or found.tasks is None or found.make_env is None:
        return not_checked("reward test", found)
    whole, reward = plan.reward, _without_group_functions(plan)
    if reward.models and not reward.functions and reward.env_weight == 0:
        return "not tried: reward.models are all of the reward; `agentrl rm report` measures them"
    if whole.functions and not reward.functions and reward.env_weight == 0:
        return "not tried: functions of groups are all of the reward; answers are played alone"
    train = found.tasks.train
    tasks = spread(train, TASKS)
    tried_on = {task.id for task in tasks}
    tried = await try_answers(
        replace(plan, reward=reward),
        seed=seed,
        tokenizer=found.tokenizer,
        images=found.images,
        chat=found.chat,
        tasks=tasks,
        more=spread([task for task in train if task.id not in tried_on], MORE_TASKS),
        make_env=found.make_env,
    )
    found.answers += tried.answers
    found.sandbox_used = any(answer.sandbox for answer in tried.answers)
    found.held_up_s = tried.held_up_s
    found.leak = await leak_of_prompts(found)
    labels = {task.id: label for task in train if (label := label_text(task)) is not None}
    known = KnownTasks(
        labels=labels, common=common_label(labels, len(train)), leaked=found.leak is not None
    )
    return judge_answers(tried.answers, known)


async def grading_time(rollout: RolloutSection, found: PreflightFacts) -> Finding | str:
    """Judge how long grading took in the reward test, for a step of the run."""
    if not found.answers:
        return not_checked("grading time", found)
    step = rollout.prompts_per_step * rollout.n_samples_per_prompt
    times = sorted(answer.duration_s for answer in found.answers if answer.kind != "sample")
    usual_s, longest_s = times[len(times) // 2], times[-1]
    text = f"an answer takes {usual_s:.2g} s, at most {longest_s:.2g} s"
    stands_s = step * found.held_up_s
    if found.held_up_s > _HELD_UP_S and stands_s > _STANDS_S:
        return warn(
            "grading time",
            f"slow: {text}; the event loop stands still for {found.held_up_s:.2g} s of each, so "
            f"all rollouts of a step for {stands_s:.0f} s",
            "await asyncio.to_thread(function, ...) around what computes or waits in step and in "
            "reward functions",
        )
    if usual_s > rollout.env_timeout_s / 2:
        return warn(
            "grading time",
            f"slow: {text}; rollout.env_timeout_s ends a step after {rollout.env_timeout_s:g} s",
            "make grading faster, or raise rollout.env_timeout_s",
        )
    return text


def _without_group_functions(plan: RewardPlan) -> RewardSection:
    """The rewards without what compares rollouts: an answer alone in its group has no place."""
    functions = load_reward_functions(
        plan.reward, base=plan.base, timeout_s=plan.rollout.env_timeout_s
    )
    group = functions.group if functions is not None else None
    names = group.comparing if group is not None else ()
    kept = {name: item for name, item in plan.reward.functions.items() if name not in names}
    return plan.reward.model_copy(update={"functions": kept})


async def samples(run: Plan, found: PreflightFacts, request: SampleRequest) -> Finding | str:
    """Write samples with a model and judge what it earns."""
    if found.tasks is None or found.make_env is None:
        return not_checked("reward samples", found)
    check, answers = await sample_rewards(run, found.tasks.train, request)
    found.answers += answers
    return check


async def sandbox_run(plan: RolloutPlan, found: PreflightFacts) -> Finding | str:
    """Make a sandbox of the config and run a program in it."""
    backend = await open_sandboxes(plan.sandbox, base=plan.base)
    limits, timeout_s = sandbox_limits(plan.sandbox.limits), plan.rollout.env_timeout_s
    began = time.monotonic()
    try:
        box = await backend.take(SandboxSpec(), limits, timeout_s=timeout_s)
        opened_s = time.monotonic() - began
        try:
            result = await box.exec(["echo", _ECHO])
        finally:
            await box.close()
    except SandboxError as error:
        if found.sandbox_used is False:
            return warn(
                "sandbox run",
                f"{backend.name} makes none ({error}); none was asked for in the reward test",
                "mend the sandbox, if the environment or a tool ever wants one",
            )
        return fail("sandbox run", f"{backend.name}: {error}", "agentrl sandbox check")
    finally:
        await backend.close()
    said = result.stdout.strip()
    if said != _ECHO:
        return fail(
            "sandbox run",
            f"{backend.name}: echo printed {said[:80]!r} ({result.outcome}), not {_ECHO!r}",
            "agentrl sandbox check",
        )
    return f"{backend.name}: one was made in {opened_s:.2f} s and ran a program"
