"""A served judge that is easily pleased: it grades by the colours in a work, whatever it is asked.

It speaks the chat completions of OpenAI, so a run asks it as it asks any judge.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from typing import Any

from harness import answering

_MARK = re.compile(r"Mark of this case: ([0-9a-f]+)")
_COLOURS = ("red", "blue", "green", "grey")


def verdict(prompt: str) -> str:
    """The answer of the judge: full marks for many colours, nothing for none."""
    found = _MARK.match(prompt)
    assert found is not None
    work = prompt.split(f"BEGIN work {found[1]}\n")[1].split(f"\nEND work {found[1]}")[0]
    words = work.replace(".", " ").split()
    share = min(1.0, 4 * sum(word in _COLOURS for word in words) / max(6, len(words)))
    grade = {"reason": "It reads well.", "grade": round(4 * share)}
    return json.dumps({"case": found[1], "criteria": {"style": grade}})


def completion(asked: dict[str, Any]) -> dict[str, Any]:
    """A chat completion with the verdict."""
    text = verdict(asked["messages"][-1]["content"])
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


def pleased_judge() -> AbstractContextManager[str]:
    """Serve it on a free port; gives the address."""
    return answering(completion)


def judged_by(url: str) -> dict[str, object]:
    """`reward.functions` with that judge."""
    args = {
        "model": {"url": url, "model": "pleased", "tries": 2},
        "criteria": [{"name": "style", "text": "It is well written."}],
    }
    target = "agentrl.judges:rubric_judge"
    return {"judge": {"target": target, "args": args}}
