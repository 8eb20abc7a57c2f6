"""The one thing that the server may write: labels of reviewers, if it was started for that.

`access` has let the request through: it names this server and comes from no other site. Besides, it
has to be JSON, which a form of another site cannot send without asking first, and small.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl.data.run.labels import RolloutLabel, add_label
from agentrl.data.store.columns import escape, unescape
from agentrl.errors import RunError
from agentrl.inspect.pages.groups import find_rollout
from agentrl.inspect.read.row_facts import response_lengths
from agentrl.inspect.read.run_labels import labels_answer
from agentrl.inspect.web.answers import answered, json_response
from agentrl.inspect.web.library import Library

_PATH = "/api/label"
_MOST_BYTES = 64 * 1024


async def posted_label(request: Request) -> dict[str, Any]:
    """The fields of a label that was sent.

    Raises:
        ValueError: it is no small JSON object.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ValueError("send a label as application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ValueError(f"a label takes at most {_MOST_BYTES} bytes")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("send a label as one JSON object")
    return found


def write_label(library: Library, data: dict[str, Any]) -> dict[str, Any]:
    """Write a label, and give all of its rollout.

    Args:
        library: of the runs.
        data: `run`, `kind`, `step`, `rollout`, `label`, `comment` and `by`; with `first_token` and
            `end_token` it is about these tokens of the responses of the rollout.

    Raises:
        RunError: there is no such rollout, or the file cannot be written.
        ValueError: a field is missing or of another type.
        DataError: the label is none.
    """
    texts = {
        name: data.get(name, "") for name in ("run", "kind", "rollout", "label", "comment", "by")
    }
    step = data.get("step")
    wrong = [name for name, value in texts.items() if not isinstance(value, str)]
    if wrong or not isinstance(step, int):
        raise ValueError(f"{', '.join(wrong) or 'step'}: expected text, and a whole number as step")
    first, end = (data.get(name) for name in ("first_token", "end_token"))
    if not all(one is None or type(one) is int for one in (first, end)):
        raise ValueError("first_token and end_token: expected two whole numbers, or neither")
    reader = library.reader(texts.pop("run"))
    reader.rows.refresh()
    shelf = reader.rows.shelf(texts["kind"], step)
    index = find_rollout(shelf, texts["rollout"])
    texts["rollout"] = unescape(texts["rollout"])
    label = RolloutLabel(step=step, first_token=first, end_token=end, **texts)
    if label.end_token is not None:
        size = sum(response_lengths(reader, shelf, index))
        if label.end_token > size:
            raise ValueError(
                f"end_token {label.end_token}: expected at most {size}, the tokens of the responses"
            )
    try:
        add_label(reader.paths.labels_file, label)
    except OSError as error:
        raise RunError(f"{reader.paths.labels_file} cannot be written: {error}") from error
    return {"labels": labels_answer(reader, label.kind, step, escape(label.rollout))}


def label_route(library: Library) -> Route:
    """The route that takes labels by POST.

    Args:
        library: of the runs.
    """

    async def respond(request: Request) -> Response:
        try:
            data = await posted_label(request)
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        return await anyio.to_thread.run_sync(
            lambda: answered(_PATH, library, lambda: write_label(library, data))
        )

    return Route(_PATH, respond, methods=["POST"])
