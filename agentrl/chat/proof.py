"""The prefix check: appending deltas gives what the template gives for the whole conversation.

What the engine saw and sampled is the truth that is trained on. The check says whether that is
also what the model's template would write today, and where it is not, why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl.chat.boundaries import Boundaries
from agentrl.chat.pictures.proof import prove_images
from agentrl.chat.template import PROBE_CALL_ID, PROBE_SCHEMA, PROBE_TOOL, GuardedTemplate
from agentrl.chat.tokenizer import Codec
from agentrl.errors import ChatError
from agentrl.types import Message
from agentrl.types.finding import Finding, fail, warn
from agentrl.types.thoughts import OPEN, opening_before

Feature = Literal["system", "tools", "tool results", "reasoning", "images", "openings"]
"""Part of a conversation that a template may rewrite; the name of the finding."""

_REFUSED = "it refuses the conversation"
_OPENING = Message(role="user", content="What is 2 + 2?")
_SYSTEM = Message(role="system", content="Answer briefly.")
_WORDS = "It is 4."
_THOUGHT = "<think>\nTwo and two.\n</think>\n\n" + _WORDS
_FEEDBACK = Message(role="user", content="Good. And 3 + 3?")
_RESULT = Message(role="tool", content="6 apples", tool_call_id=PROBE_CALL_ID, name=PROBE_TOOL)


def prove(
    template: GuardedTemplate, boundaries: Boundaries, codec: Codec, *, known_family: bool
) -> list[Finding]:
    """Compare deltas with full renders of probe conversations, text and ids.

    A finding is one way in which the template does not simply append. Conversations that have the
    part it names are refused where it failed, and trained on as they were seen where it warns.

    Args:
        template: the model's own.
        boundaries: the pieces taken from it.
        codec: its tokenizer.
        known_family: rewriting that is known of a family is reported; of an unknown template it
            is refused.

    Raises:
        ChatError: plain turns differ.
    """
    check = _PrefixCheck(template, boundaries, codec)
    findings: list[Finding] = []
    difference = check.compare([_OPENING], _WORDS, [[_FEEDBACK], [_FEEDBACK]])
    if difference:
        difference = check.compare(
            [_OPENING], _WORDS, [[_FEEDBACK], [_FEEDBACK]], ignore_thinking=True
        )
        findings.append(_reasoning())
    if difference:
        raise ChatError(
            "the chat template does not append turns, so the ids a model is trained on would not "
            f"be those it sees when it is used: {difference}; use a template that keeps its "
            "history, or chat.template: raw"
        )
    thinking = bool(findings)
    if boundaries.earlier:
        findings.append(_openings(boundaries))

    def report(feature: Feature, difference: str | None, hint: str) -> None:
        if difference is None:
            return
        text = f"the chat template rewrites earlier turns {hint} ({difference})"
        if known_family:
            text += "; turns are appended to what the model saw, and that is trained on"
        findings.append(warn(feature, text) if known_family else fail(feature, text))

    if template.abilities.system:
        difference = check.compare(
            [_SYSTEM, _OPENING], _WORDS, [[_FEEDBACK], [_FEEDBACK]], ignore_thinking=thinking
        )
        report("system", difference, "when there is a system message")
    if template.abilities.tools:
        difference = check.compare(
            [_OPENING],
            _WORDS,
            [[_FEEDBACK], [_FEEDBACK]],
            tools=[PROBE_SCHEMA],
            ignore_thinking=thinking,
        )
        report("tools", difference, "when tools are offered")
    if "tool" in boundaries.pieces and template.abilities.tool_role:
        opened = opening_before(boundaries.generation) == OPEN
        words, prefilled = (_THOUGHT, "<think>\n") if opened else (_WORDS, "")
        difference = None
        # A template may refuse two answers in a row that called no tool, so one must do then.
        for turns in ([[_RESULT], [_RESULT]], [[_RESULT]]):
            difference = check.compare([_OPENING], words, turns, prefilled=prefilled)
            if difference and thinking:
                difference = check.compare([_OPENING], _WORDS, turns, ignore_thinking=True)
            if difference != _REFUSED:
                break
        if difference:
            findings.append(_results(difference))
    if not thinking and check.compare([_OPENING], _THOUGHT, [[_FEEDBACK], [_FEEDBACK]]):
        findings.append(_reasoning())
    if template.images is not None and (difference := prove_images(template, boundaries, codec)):
        findings.append(
            fail("images", f"images cannot be appended with the chat template: {difference}")
        )
    return findings


def _results(difference: str) -> Finding:
    return warn(
        "tool results",
        f"the chat template rewrites earlier turns when a tool answers ({difference}); tool "
        "results are given as user messages",
    )


def _openings(boundaries: Boundaries) -> Finding:
    return warn(
        "openings",
        f"the chat template begins earlier turns of the assistant with {boundaries.earlier!r}, and "
        f"asks for the next one with {boundaries.generation!r}; turns are kept as the model began "
        "them",
    )


def _reasoning() -> Finding:
    return warn(
        "reasoning",
        "the chat template drops <think> blocks from earlier turns; they are kept here, since "
        "the model saw them when it went on",
    )


class _PrefixCheck:
    def __init__(self, template: GuardedTemplate, boundaries: Boundaries, codec: Codec) -> None:
        self._template = template
        self._boundaries = boundaries
        self._codec = codec

    def compare(
        self,
        opening: Sequence[Message],
        words: str,
        turns: Sequence[Sequence[Message]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prefilled: str = "",
        ignore_thinking: bool = False,
    ) -> str | None:
        """The first difference between appended and rendered, or None.

        The ids of the last delta must be the end of the ids of the whole. The ids before it are
        not compared: a tokenizer may well join the last line break of a generation prompt with
        what is said next, but a model that is about to speak sees them apart.

        Args:
            opening: the messages of the prompt.
            words: what the assistant says in every turn.
            turns: what follows each of them.
            tools: schemas offered.
            prefilled: the part of `words` that the generation prompt already holds.
            ignore_thinking: leave out what stands between a generation prompt and `words` if it
                is white space and a thought: templates drop thoughts from the history, or put an
                empty one there.
        """
        entries = [_entry(message) for message in opening]
        prompt = self._template.raw(entries, generate=True, tools=tools)
        deltas: list[str] = []
        for turn in turns:
            entries += [{"role": "assistant", "content": words}, *map(_entry, turn)]
            parts = self._boundaries.compose(turn, lambda message: message.content)
            deltas.append("".join(parts))
        rendered = self._template.attempt(entries, generate=True, tools=tools)
        if rendered is None:
            return _REFUSED
        said = self._boundaries.lead + words.removeprefix(prefilled) + self._boundaries.close
        appended = said.join([prompt, *deltas[:-1]]) + said + deltas[-1]
        shown = self._boundaries.as_generated(rendered)
        if ignore_thinking:
            appended, shown = (_without_thoughts(text, words) for text in (appended, shown))
        if appended != shown:
            return _first_difference(appended, shown)
        return self._compare_ids(entries, tools, rendered, deltas[-1])

    def _compare_ids(
        self,
        whole: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        rendered: str,
        delta: str,
    ) -> str | None:
        codec, pieces = self._codec, self._boundaries
        full = codec.encode(rendered)
        reference = codec.tokenizer.apply_chat_template(
            self._template.entries(whole),
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        if list(reference) != list(full):
            return f"the tokenizer gives {_around(reference, full)} for the rendered text"
        tail = codec.encode(delta, after=pieces.close_id)
        ending = full[len(full) - len(tail) :]
        if ending != tail:
            return f"the ids of the delta differ: {_around(tail, ending)}"
        return None


def _entry(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        entry |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return entry


def _without_thoughts(text: str, words: str) -> str:
    """`text` with nothing but `words` in the place of `words` and a thought before them."""
    thought = r"(?:<think>(?:(?!</think>|<think>).)*(?:</think>)?)?"
    return re.sub(rf"\s*{thought}\s*{re.escape(words)}", lambda _: words, text, flags=re.DOTALL)


def _first_difference(appended: str, rendered: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(appended, rendered, strict=False)) if a != b),
        min(len(appended), len(rendered)),
    )
    window = slice(max(0, at - 20), at + 40)
    return f"appended ...{appended[window]!r}..., rendered ...{rendered[window]!r}..."


def _around(got: Sequence[int], expected: Sequence[int]) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    return f"{list(got[at : at + 5])} instead of {list(expected[at : at + 5])} at position {at}"
