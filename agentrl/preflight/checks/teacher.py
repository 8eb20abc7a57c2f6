"""The check of a run's teacher: no model is loaded; a server is asked for a few tokens."""

from __future__ import annotations

from agentrl.chat.hint import prompt_ends
from agentrl.config.plan import TrainerPlan
from agentrl.preflight.checks.facts import PreflightFacts, not_checked
from agentrl.runtime.assembly.hints import check_hints, hint_section
from agentrl.runtime.assembly.teacher import ask_server, check_teacher
from agentrl.types.finding import Finding, fail


async def teacher(plan: TrainerPlan, found: PreflightFacts) -> Finding | str:
    """Check a teacher: path and vocabulary, server, or the hints of all training tasks."""
    text = check_teacher(plan, tokenizer=found.tokenizer)
    hint = hint_section(plan)
    if hint is not None:
        if found.tasks is None or found.chat is None:
            return not_checked("teacher", found)
        longest = check_hints(hint, found.tasks.train)
        if not prompt_ends(found.chat):
            return fail(
                "teacher",
                f"{text}: the chat format {found.chat.name} quotes messages, so nothing can be "
                "added to one",
                "take a teacher of kind checkpoint or served",
            )
        return f"{text} of at most {longest} characters"
    if found.tokenizer is None:
        return f"{text}; vocabularies are not compared, since the policy's tokenizer is missing"
    answered = await ask_server(plan, found.tokenizer)
    return f"{text}; {answered}" if answered else text
