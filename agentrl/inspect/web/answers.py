"""Answers of the server as JSON, and what becomes of one that cannot be given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from agentrl.errors import AgentrlError, RunError
from agentrl.inspect.read.safe_json import jsonable
from agentrl.inspect.web.library import Library

logger = logging.getLogger(__name__)


def answered(path: str, library: Library, answer: Callable[[], Any]) -> Response:
    """The answer as a response; an error becomes a message with a status.

    Args:
        path: of the request, for the log.
        library: of the runs.
        answer: works it out; called here, in a thread.
    """
    try:
        with library.answering():
            given = answer()
    except (AgentrlError, ValueError) as error:
        status = 404 if isinstance(error, RunError) else 400
        return json_response({"error": str(error)}, status)
    except Exception as error:  # the outermost boundary: hostile files end here as a message
        logger.debug("answering %s failed", path, exc_info=True)
        what = f"this cannot be shown: {type(error).__name__}: {error}"
        return json_response({"error": what[:2000]}, 500)
    return given if isinstance(given, Response) else json_response(given)


def json_response(value: Any, status: int = 200) -> Response:
    """A response that no cache keeps."""
    return Response(
        jsonable(value),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )
