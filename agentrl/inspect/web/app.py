"""The inspector's web server: JSON about runs under `/api/`, and the page that shows it.

Every answer is worked out from the files of a run when it is asked for; the server keeps nothing
that a restart would lose, and writes nothing but labels, if it was started for that
(`agentrl.inspect.web.labels`). `agentrl.inspect.web.access` decides who may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from agentrl.errors import AgentrlError, RunError
from agentrl.inspect.export.page import STATIC
from agentrl.inspect.pages.endings import endings_answer
from agentrl.inspect.pages.examples import example_answer, examples_answer
from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.images import image_file
from agentrl.inspect.pages.live import pulse_answer
from agentrl.inspect.pages.overview import run_entry, run_overview
from agentrl.inspect.pages.rollout import diff_answer, rollout_answer
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.web.access import AccessGuard
from agentrl.inspect.web.answers import answered, json_response
from agentrl.inspect.web.base_path import BasePath, page_response
from agentrl.inspect.web.downloads import export_response
from agentrl.inspect.web.hacking_questions import HACKING_ANSWERS
from agentrl.inspect.web.labels import label_route
from agentrl.inspect.web.library import Library
from agentrl.inspect.web.request_parameters import (
    optional,
    required,
    whole,
    whole_or_none,
)
from agentrl.inspect.web.task_questions import TASK_ANSWERS
from agentrl.types import TERMINATION_RULES, TerminationRule

_SQL_ROWS = 1000
_SQL_TIMEOUT_S = 30.0
_SQL_WAITING = 8
"""Threads that wait for queries; the other answers have their own."""

Answer = Callable[[Library, Mapping[str, str]], Any]


def make_app(
    library: Library,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    labels: bool = False,
    base: str = "",
    names: Collection[str] = (),
    endings: Mapping[Any, TerminationRule] = TERMINATION_RULES,
) -> Starlette:
    """The server as an ASGI application.

    Args:
        library: of the runs.
        host: address it will listen at.
        token: what visitors have to show; None asks for none.
        labels: whether visitors may write labels into the runs.
        base: path below which a proxy has it; empty for none.
        names: other names by which visitors come.
        endings: how rollouts can end, as the page names and marks them.
    """
    routes = [
        Route("/api/endings", _endpoint(library, lambda *_: endings_answer(endings))),
        *(Route(f"/api/{name}", _endpoint(library, answer)) for name, answer in _ANSWERS.items()),
        Route("/api/sql", _sql_endpoint(library)),
        *([label_route(library)] if labels else []),
        Route("/api/label", _endpoint(library, lambda *_: {"can_label": labels}), methods=["GET"]),
        Route("/api/{rest:path}", _no_such_answer),
        Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        Route("/favicon.ico", _nothing),
        Route("/{rest:path}", partial(page_response, base)),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(BasePath, base=base),
            Middleware(AccessGuard, host=host, token=token, base=base, names=names),
            Middleware(GZipMiddleware, minimum_size=50_000, compresslevel=1),
        ],
    )


def _endpoint(library: Library, answer: Answer) -> Callable[[Request], Response]:
    """An endpoint that runs in a thread, since it reads files."""

    def respond(request: Request) -> Response:
        return answered(request.url.path, library, lambda: answer(library, request.query_params))

    return respond


def _runs(library: Library, _: Mapping[str, str]) -> Any:
    library.diagnose_ahead()
    return [_entry(reader) for reader in library.readers()]


def _entry(reader: Any) -> dict[str, Any]:
    try:
        return run_entry(reader)
    except AgentrlError as error:  # one run that was moved away does not hide the others
        return {
            "id": reader.run.id,
            "name": reader.run.name,
            "path": str(reader.path),
            "state": "stopped",
            "steps": 0,
            "started": None,
            "model": "",
            "score": "",
            "score_before": None,
            "score_after": None,
            "verdicts": None,
            "notes": [str(error)],
        }


def _run(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    library.read_ahead(reader)
    return run_overview(reader)


def _pulse(library: Library, query: Mapping[str, str]) -> Any:
    return pulse_answer(library.reader(required(query, "run")))


def _step(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    return step_answer(reader, query.get("kind") or "train", whole_or_none(query, "step"))


def _group(library: Library, query: Mapping[str, str]) -> Any:
    reader, kind, step = _selected_step(library, query)
    return group_answer(reader, kind, step, required(query, "group"))


def _rollout(library: Library, query: Mapping[str, str]) -> Any:
    reader, kind, step = _selected_step(library, query)
    return rollout_answer(reader, kind, step, required(query, "rollout"))


def _tokens(library: Library, query: Mapping[str, str]) -> Any:
    reader, kind, step = _selected_step(library, query)
    row = whole_or_none(query, "row") or 0
    return tokens_answer(reader, kind, step, required(query, "rollout"), row)


def _examples(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    return examples_answer(reader, optional(query, "dataset"), whole_or_none(query, "step"))


def _example(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    return example_answer(
        reader, required(query, "dataset"), whole(query, "step"), required(query, "example")
    )


def _diff(library: Library, query: Mapping[str, str]) -> Any:
    reader, kind, step = _selected_step(library, query)
    other = whole_or_none(query, "b_step")
    return diff_answer(
        reader,
        (kind, step, required(query, "a")),
        (query.get("b_kind") or kind, step if other is None else other, required(query, "b")),
    )


def _sql_endpoint(library: Library) -> Callable[[Request], Awaitable[Response]]:
    """Answers a query, and ends it when the one who asked has gone."""
    waiting = anyio.CapacityLimiter(_SQL_WAITING)

    async def respond(request: Request) -> Response:
        gone = threading.Event()
        answer = _endpoint(library, partial(_sql, gone=gone))

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            gone.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                response = await anyio.to_thread.run_sync(
                    answer, request, abandon_on_cancel=True, limiter=waiting
                )
                tasks.cancel_scope.cancel()
        finally:
            gone.set()
        return response

    return respond


def _sql(library: Library, query: Mapping[str, str], gone: threading.Event) -> Any:
    reader = library.reader(required(query, "run"))
    try:
        answer = library.queries.ask(
            reader.path,
            required(query, "q"),
            limit=_SQL_ROWS,
            timeout_s=_SQL_TIMEOUT_S,
            given_up=gone,
        )
    except RunError as error:  # the question is at fault, not the address
        raise ValueError(str(error)) from error
    return {
        "columns": answer.columns,
        "rows": answer.rows(),
        "took_ms": round(1000 * answer.took_s, 1),
        "truncated": answer.truncated,
        "notes": answer.notes,
    }


def _image(library: Library, query: Mapping[str, str]) -> Any:
    data, kind = image_file(library.reader(required(query, "run")), required(query, "digest"))
    # A file is named by its content, so a copy of it is never old.
    return Response(data, media_type=kind, headers={"cache-control": "private, immutable"})


def _export(library: Library, query: Mapping[str, str]) -> Any:
    reader, kind, step = _selected_step(library, query)
    return export_response(
        reader, kind, step, optional(query, "rollout"), query.get("format") or "html"
    )


def _selected_step(library: Library, query: Mapping[str, str]) -> tuple[Any, str, int]:
    reader = library.reader(required(query, "run"))
    return reader, query.get("kind") or "train", whole(query, "step")


_ANSWERS: Mapping[str, Answer] = {
    "runs": _runs,
    "run": _run,
    "pulse": _pulse,
    "step": _step,
    "group": _group,
    "rollout": _rollout,
    "tokens": _tokens,
    "examples": _examples,
    "example": _example,
    "diff": _diff,
    **TASK_ANSWERS,
    **HACKING_ANSWERS,
    "image": _image,
    "export": _export,
}


def _no_such_answer(request: Request) -> Response:
    valid = ", ".join(f"/api/{name}" for name in (*_ANSWERS, "endings", "label", "sql"))
    return json_response(
        {"error": f"{request.url.path} is nothing this server knows; valid: {valid}"}, 404
    )


def _nothing(_: Request) -> Response:
    return Response(status_code=204)
