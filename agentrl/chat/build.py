"""Recognise the family of a template and build its format, proven."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentrl.chat.auto import choose_parser
from agentrl.chat.boundaries import find_boundaries
from agentrl.chat.calls.json_calls import HermesParser
from agentrl.chat.calls.marked_json import FencedJsonParser
from agentrl.chat.format import ChatFormat, RawChat, TemplateChat
from agentrl.chat.parsers import AUTO, PARSERS, build_parser
from agentrl.chat.pictures.slots import ImageReader
from agentrl.chat.proof import prove
from agentrl.chat.template import GuardedTemplate
from agentrl.chat.tokenizer import Codec, TokenizerLike
from agentrl.config.schema import ChatSection
from agentrl.errors import ChatError, ConfigError, choices
from agentrl.models.ends import stored_ends
from agentrl.types.finding import Status

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFamily:
    """Facts of a template family beside what its template shows."""

    marker: str
    """Stands in every rendered conversation of the family."""
    not_marker: str | None = None
    """Stands in conversations of a relative that is not of the family."""
    stops: tuple[str, ...]
    """Special tokens that end a turn, beside the one the template writes."""


FAMILIES: Mapping[str, TemplateFamily] = {
    "chatml": TemplateFamily(marker="<|im_start|>", stops=("<|im_end|>", "<|endoftext|>")),
    "llama3": TemplateFamily(
        marker="<|start_header_id|>", stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    ),
    "mistral": TemplateFamily(marker="[INST]", not_marker="<<SYS>>", stops=("</s>",)),
}
TEMPLATES = ("auto", *sorted(FAMILIES), "generic", "raw")
"""Valid values of `chat.template`."""


def build_chat(
    tokenizer: TokenizerLike, section: ChatSection, *, images: ImageReader | None = None
) -> ChatFormat:
    """The format of a model's conversations.

    Args:
        tokenizer: a `transformers` tokenizer, or anything like it.
        section: template, tool parser (without one, tools are described as for `hermes`), system
            prompt, and how a reply begins and stops.
        images: the image processor of the model; None for a run that reads text only.

    Raises:
        ConfigError: an unknown template or parser, or a tokenizer without a template.
        ChatError: the template cannot be appended to, or is not of the named family; a stop text
            that is not one token.
    """
    if section.template == "raw" and (section.reply_prefix or section.stop):
        raise ConfigError(
            "chat.reply_prefix and chat.stop belong to templated turns, but chat.template is "
            "'raw'; write the prefix into the environment's own text, or choose another template"
        )
    chat = _build(tokenizer, section, images)
    chat.set_reply(prefix=section.reply_prefix, stop=section.stop)
    chat.add_ends(*stored_ends(str(getattr(tokenizer, "name_or_path", None) or "")))
    logger.info("a turn ends at %s", chat.ends())
    return chat


def _build(
    tokenizer: TokenizerLike, section: ChatSection, images: ImageReader | None
) -> ChatFormat:
    if section.template not in TEMPLATES:
        raise ConfigError(f"chat.template: {choices(section.template, TEMPLATES)}")
    parser, auto = build_parser(section.tool_parser), section.tool_parser == AUTO
    codec = Codec(tokenizer)
    syntax = HermesParser() if parser is None or auto else parser
    system_prompt = section.system_prompt
    if section.template == "raw":
        syntax = FencedJsonParser() if auto else syntax
        return RawChat(codec, syntax=syntax, system_prompt=system_prompt)
    template = GuardedTemplate(codec, syntax=syntax, images=images)
    name = _family_of(template, section.template)
    boundaries = find_boundaries(template, codec)
    findings = prove(template, boundaries, codec, known_family=name != "generic")
    for finding in findings:
        if finding.status is Status.WARN:
            logger.warning("%s", finding.detail)
        elif finding.name == "images":
            logger.warning("%s; conversations with images are refused", finding.detail)
        elif finding.name == "system" and system_prompt is not None:
            raise ChatError(f"chat.system_prompt is set, but {finding.detail}")
    if any(finding.name == "tool results" for finding in findings):
        boundaries = replace(
            boundaries, pieces={r: p for r, p in boundaries.pieces.items() if r != "tool"}
        )
    reason = ""
    if auto:
        chosen = choose_parser(template, [PARSERS.find(known)() for known in PARSERS])
        template.syntax = syntax = chosen.parser
        template.shows_tools, reason = chosen.own, chosen.reason
        logger.info("tool calls are read as %s: %s", syntax.name, reason)
    chat = TemplateChat(
        codec,
        name=name,
        template=template,
        boundaries=boundaries,
        findings=findings,
        syntax=syntax,
        reads_calls=parser is not None,
        system_prompt=system_prompt,
    )
    chat.calls_note = reason
    known = FAMILIES[name].stops if name in FAMILIES else ()
    chat.add_ends(f"family {name}", [codec.specials.get(text) for text in known])
    return chat


def _family_of(template: GuardedTemplate, wanted: str) -> str:
    try:
        text = template.raw([{"role": "user", "content": "Hello"}], generate=True)
    except ChatError as error:
        raise ConfigError(
            f"the tokenizer cannot render a chat: {error}; set its chat_template, or use "
            "chat.template: raw"
        ) from error
    found = "generic"
    for name, family in FAMILIES.items():
        if family.marker in text and not (family.not_marker and family.not_marker in text):
            found = name
            break
    if wanted in ("auto", found):
        return found
    if wanted == "generic":
        return "generic"
    raise ConfigError(
        f"chat.template is {wanted!r}, but the model's own template is of the family {found!r} "
        f"(it renders {text[:80]!r}); use {found!r} or 'auto'"
    )
