"""Bodies of requests for a session: of a rollout that waits, or of a task of the agent's own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from agentrl.errors import EnvError, choices
from agentrl.gateway.bodies import check_shape
from agentrl.gateway.records import RefusalReason, RequestRefused
from agentrl.rollout.coerce import as_observation
from agentrl.types import Task

MOST_WAIT_S = 60.0
"""Longest time that a request for a rollout waits for one."""
MOST_TASK_BYTES = 2**20
"""Most bytes of a task that an agent brings."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_FIELDS = ("id", "prompt", "messages", "label", "metadata")


def wanted_rollout(raw: bytes) -> tuple[str, float]:
    """The id of the task that is asked for, empty for any, and how long to wait.

    Raises:
        RequestRefused: it cannot be read; names the field.
    """
    body = _object(raw, ("task", "wait_s")) if raw.strip() else {}
    wanted, wait_s = body.get("task", ""), body.get("wait_s", 0)
    if not isinstance(wanted, str):
        _refuse(
            "task is no text; give the id of a task of the dataset, or POST a task of your own to "
            "/sessions"
        )
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not wait_s >= 0:
        _refuse(f"wait_s is {ascii(wait_s)[:40]}, expected seconds")
    return wanted, min(float(wait_s), MOST_WAIT_S)


def own_task(raw: bytes) -> Task:
    """The task that an agent brings.

    Raises:
        RequestRefused: it cannot be read, or is too large; names the field.
    """
    if len(raw) > MOST_TASK_BYTES:
        raise RequestRefused(
            RefusalReason.TOO_LARGE,
            f"the task has {len(raw)} bytes, at most {MOST_TASK_BYTES} are read; leave out what "
            "only the agent needs",
        )
    task = _object(raw, ("task",)).get("task")
    if not isinstance(task, dict):
        _refuse(f"task is {ascii(task)[:80]}, expected an object with {', '.join(_FIELDS)}")
    unknown = next((name for name in task if name not in _FIELDS), None)
    if unknown is not None:
        _refuse(f"unknown field of task: {choices(unknown, _FIELDS)}")
    if ("prompt" in task) == ("messages" in task):
        _refuse("give task.prompt, a text, or task.messages, and not both")
    metadata = task.get("metadata", {})
    if not isinstance(metadata, dict):
        _refuse(f"task.metadata is {ascii(metadata)[:80]}, expected an object")
    # The same task has the same name in each run.
    name = task.get("id", f"own-{hashlib.sha256(raw).hexdigest()[:12]}")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        _refuse(
            f"task.id is {ascii(name)[:80]}, expected at most 200 letters, digits and . _ : / -"
        )
    try:
        prompt = as_observation({"observation": task.get("prompt", task.get("messages"))}).content
    except EnvError as error:
        why = str(error).removeprefix("reset: 'observation'")
        _refuse(f"the prompt of the task{why}")
    if not prompt:
        _refuse("the prompt of the task is empty; send a text, or at least one message")
    return Task(id=name, prompt=prompt, label=task.get("label"), metadata=metadata)


def _object(raw: bytes, known: Sequence[str]) -> dict[str, Any]:
    check_shape(raw)
    try:
        body = json.loads(raw)
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        _refuse(f"the body is not JSON: {error}")
    if not isinstance(body, dict) or set(body) - set(known):
        _refuse(f"got {ascii(body)[:80]}, expected an object with {' and '.join(known)}")
    return body


def _refuse(why: str) -> NoReturn:
    raise RequestRefused(RefusalReason.BAD_REQUEST, why)
