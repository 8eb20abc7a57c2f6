"""Rollouts as one file for sharing: the inspector's page with its styles, script and data inside.

The file asks for nothing. Its own policy lets exactly one script run, by the hash of its text, and
data stands in elements that no browser runs, with every `<` and every character that does not
print spelled out. So hostile text of a run stays text here as it does on the served page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import RunError
from agentrl.inspect.export.bundle import bundle
from agentrl.inspect.pages.endings import endings_answer
from agentrl.inspect.pages.images import image_address
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import jsonable

STATIC = Path(__file__).parents[1] / "static"
"""The page, as files."""
_STYLE = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">\n')
_SCRIPT = re.compile(r'<script type="module" src="/static/[^"]+"></script>\n')
_PRELOAD = re.compile(r'(?:<!--[^>]*-->\n)?<link rel="modulepreload" href="[^"]+">\n')
_ICON = "/static/icon.svg"
_UNSAFE = re.compile("[<\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutKey:
    """The key of a stored rollout in a run."""

    kind: str
    """`train` or `eval/NAME`, as the inspector's answers have it."""
    step: int
    """Step of its file."""
    rollout: str
    """Id as it is stored."""


def page_pieces(
    reader: RunReader, keys: Iterable[RolloutKey], *, model: str = "", version: str = ""
) -> Iterator[str]:
    """The file, piece by piece.

    Args:
        reader: of the run.
        keys: of the rollouts, each once.
        model: what training began with.
        version: of the agentrl that recorded the run.

    Raises:
        RunError: a rollout is not there any more, or its file is damaged.
    """
    script = bundle(STATIC, "exported.js")
    before, after = _frame(script)
    held: list[tuple[str, dict[str, Any], str]] = []

    def answer(name: str, params: dict[str, Any], value: Any) -> str:
        held.append((name, params, f"held-{len(held)}"))
        return _data(held[-1][2], value)

    yield before
    yield answer("endings", {}, endings_answer())
    listed: list[dict[str, Any]] = []
    images: set[str] = set()
    names = ("kind", "step", "task_id", "rollout_id", "reward", "termination")
    for key in keys:
        at = {"run": reader.run.id, "kind": key.kind, "step": key.step, "rollout": key.rollout}
        found = rollout_answer(reader, key.kind, key.step, key.rollout)
        listed.append({name: found[name] for name in names})
        yield answer("rollout", at, found)
        for row in found["rows"]:
            number = row["row_index"]
            for image in row["images"]:
                if image["kept"] and image["digest"] not in images:
                    images.add(image["digest"])
                    source = image_address(reader, image["digest"])
                    at_image = {"run": reader.run.id, "digest": image["digest"]}
                    yield answer("image", at_image, source)
            try:
                tokens = tokens_answer(reader, key.kind, key.step, key.rollout, number)
            except RunError:  # columns of unequal length; the turns are shown all the same
                continue
            yield answer("tokens", {**at, "row": number}, tokens)
    contents = {"run": reader.run.id, "model": model, "version": version, "rollouts": listed}
    yield answer("contents", {}, contents)
    yield _data("held", held)
    yield f"<script>{script}</script>\n{after}"


def _frame(script: str) -> tuple[str, str]:
    """The page's own markup before and after its data, with styles inside and a policy."""
    page = (STATIC / "index.html").read_text()
    style = "".join((STATIC / name).read_text() for name in _STYLE.findall(page))
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{_hash(script)}'",
            f"style-src 'sha256-{_hash(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    for pattern in (_STYLE, _PRELOAD, _SCRIPT):
        page = pattern.sub("", page)
    page = page.replace(_ICON, f"data:image/svg+xml;base64,{icon}")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
    page = page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{meta}')
    page = page.replace("</head>", f"<style>{style}</style>\n</head>")
    before, end, after = page.partition("</body>")
    return before, end + after


def _data(name: str, value: Any) -> str:
    text = jsonable(value).decode()
    safe = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return f'<script type="application/json" id="{name}">{safe}</script>\n'


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
