"""Errors as OpenAI writes them, for chat completions and responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.gateway.records import RefusalReason, RequestRefused
from agentrl.gateway.wires.wire import said_by

_FULL = (
    "This model's maximum context length is {most} tokens. However, your messages resulted in "
    "{tokens} tokens. Please reduce the length of the messages."
)
_STATUS: Mapping[RefusalReason, tuple[int, str, str | None]] = {
    RefusalReason.BAD_REQUEST: (400, "invalid_request_error", None),
    RefusalReason.NOT_TEXT: (400, "invalid_request_error", "unsupported_content"),
    RefusalReason.UNKNOWN_SESSION: (401, "invalid_request_error", "invalid_api_key"),
    RefusalReason.NO_ACCESS: (401, "invalid_request_error", "invalid_api_key"),
    RefusalReason.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    RefusalReason.UNKNOWN_PATH: (404, "invalid_request_error", "unknown_url"),
    RefusalReason.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    RefusalReason.TOO_LATE: (408, "invalid_request_error", "request_timeout"),
    RefusalReason.CONTEXT_FULL: (400, "invalid_request_error", "context_length_exceeded"),
    # 400, so that no client tries again what cannot succeed.
    RefusalReason.LIMIT: (400, "invalid_request_error", "rollout_limit"),
    RefusalReason.BUSY: (429, "rate_limit_error", "too_many_rollouts"),
    RefusalReason.ENGINE: (500, "server_error", "engine_failed"),
}


def openai_error(refused: RequestRefused) -> tuple[int, dict[str, Any]]:
    """HTTP status and body."""
    status, kind, code = _STATUS[refused.reason]
    said = said_by(refused, full=_FULL)
    return status, {"error": {"message": said, "type": kind, "param": None, "code": code}}
