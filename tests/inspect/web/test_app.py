"""The server over HTTP: what it answers, whom it refuses, how it starts and ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pyarrow.parquet as pq
import pytest

from agentrl.inspect.web.app import make_app
from agentrl.inspect.web.library import Library
from agentrl.inspect.web.serve import page_address
from agentrl.types import TERMINATION_RULES, Termination, TerminationRule

BASE = "http://127.0.0.1:9000"


@asynccontextmanager
async def client_of(runs: list[Path], **more) -> AsyncIterator[httpx.AsyncClient]:
    library = Library(runs)
    transport = httpx.ASGITransport(app=make_app(library, **more))
    try:
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield client
    finally:
        library.close()


@pytest.fixture
async def client(recorded_run, second_run):
    async with client_of([recorded_run, second_run]) as client:
        yield client


def strict(body: bytes):
    """JSON as a browser reads it: no NaN."""

    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(body, parse_constant=refuse)


async def ask(client: httpx.AsyncClient, name: str, status: int = 200, **query: Any) -> Any:
    answer = await client.get(f"/api/{name}", params=query)
    assert answer.status_code == status, answer.text
    return strict(answer.content)


async def test_every_answer_from_the_list_of_runs_to_a_token(client):
    runs = await ask(client, "runs")
    assert [run["id"] for run in runs] == ["recorded", "second"]
    assert {run["state"] for run in runs} == {"finished"}
    run = {"run": "recorded"}
    overview = await ask(client, "run", **run)
    assert overview["revision"] == (await ask(client, "pulse", **run))["revision"]
    assert {"metric", "label", "unit", "healthy", "red", "what", "source"} <= (
        overview["dashboard"][0].keys()
    )
    assert {"detector", "status", "title", "evidence", "levers"} <= overview["verdicts"][0].keys()
    assert set(overview["waste"]) == {"tokens", "seconds"}
    place = {**run, "kind": "train", "step": 3}
    step = await ask(client, "step", **place)
    group = step["groups"][0]["group_id"]
    siblings = (await ask(client, "group", **place, group=group))["siblings"]
    names = [sibling["rollout_id"] for sibling in siblings]
    rollout = await ask(client, "rollout", **place, rollout=names[0])
    assert rollout["siblings"] == names
    tokens = await ask(client, "tokens", **place, rollout=names[0], row=0)
    count = tokens["n_prompt"] + tokens["n_response"]
    arrays = [tokens[name] for name in ("ids", "text", "turn", "mask", "rollout_log_prob")]
    arrays += [tokens["why"]["codes"], tokens["role"]["codes"], tokens["version"]]
    assert {len(array) for array in arrays} == {count} == {rollout["rows"][0]["n_tokens"]}
    assert (await ask(client, "diff", **place, a=names[0], b=names[1]))["actions"]
    assert (await ask(client, "find", **run, q="script", limit=3))["total"] > 3


async def test_a_wrong_question_is_told_what_is_right(client):
    place = {"run": "recorded", "kind": "train", "step": 3}
    for name, status, query, words in (
        ("run", 400, {}, "the parameter 'run' is missing"),
        ("run", 404, {"run": "recordet"}, "did you mean 'recorded'"),
        ("step", 404, {"run": "recorded", "step": 77}, "4 steps from 1 to 4"),
        ("step", 404, {"run": "recorded", "kind": "eval/no", "step": 1}, "valid: eval/held, train"),
        ("step", 400, {"run": "recorded", "step": "-1"}, "expected a whole number"),
        ("step", 400, {"run": "recorded", "step": "\u0663"}, "expected a whole number"),
        ("group", 404, {**place, "group": "x"}, "no group 'x'"),
        ("rollout", 404, {**place, "rollout": "x"}, "no rollout 'x'"),
        ("find", 400, {"run": "recorded", "reward_min": "nan"}, "expected a number"),
        ("find", 400, {"run": "recorded", "truncated": "maybe"}, "expected 1 or 0"),
        ("sql", 400, {"run": "recorded", "q": "drop view turns"}, "expected one SELECT, got DROP"),
        ("export", 400, {**place, "format": "docx"}, "valid: atif, html, jsonl, parquet"),
        ("nothing", 404, {}, "valid: /api/runs"),
    ):
        answer = await ask(client, name, status, **query)
        assert words in answer["error"]


async def test_sql_reads_the_run_and_nothing_else(client, recorded_run, tmp_path):
    query = "select kind, count(*) as n from trajectories group by kind order by kind"
    answer = await ask(client, "sql", run="recorded", q=query)
    assert (answer["columns"], answer["rows"]) == (
        ["kind", "n"],
        [["eval/held", 18], ["train", 64]],
    )
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for hostile in (
        f"select * from read_csv('{secret}')",
        f"select * from '{secret}'",
        "select * from read_csv('https://example.org/x.csv')",
        f"copy (select 1) to '{tmp_path}/out.csv'",
        "set enable_external_access = true",
        "install httpfs",
        "select 1; select 2",
    ):
        assert (await ask(client, "sql", 400, run="recorded", q=hostile))["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv"]
    endless = "select * from range(3000)"
    answer = await ask(client, "sql", run="recorded", q=endless)
    assert (len(answer["rows"]), answer["truncated"]) == (1000, True)


async def test_exports_are_downloads(client, tmp_path):
    place = {"run": "recorded", "kind": "train", "step": 1}
    group = (await ask(client, "step", **place))["groups"][0]["group_id"]
    for format in ("jsonl", "parquet", "html", "atif"):
        answer = await client.get(
            "/api/export", params={**place, "rollout": f"{group}/0", "format": format}
        )
        assert answer.status_code == 200
        assert re.fullmatch(
            r'attachment; filename="[A-Za-z0-9._-]+"', answer.headers["content-disposition"]
        )
        assert answer.headers["content-type"] == "application/octet-stream"
        if format == "html":
            assert b"<script>alert('x')" not in answer.content
        if format == "parquet":
            (tmp_path / "out.parquet").write_bytes(answer.content)
            assert pq.read_table(tmp_path / "out.parquet").num_rows == 1
    whole = await client.get("/api/export", params={**place, "format": "jsonl"})
    assert len(whole.content.splitlines()) == 16


async def test_an_ending_of_the_table_is_one_of_the_answers(recorded_run):
    rule = TerminationRule(
        reward_trusted=False, in_baseline=False, in_loss=False, mark="fault", meaning="A toy."
    )
    async with client_of(
        [recorded_run], endings={**TERMINATION_RULES, "toy_ending": rule}
    ) as client:
        answer = await ask(client, "endings")
    assert list(answer)[:-1] == [str(name) for name in Termination]
    assert answer["toy_ending"] == {
        "mark": "fault", "meaning": "A toy.", "reward_trusted": False, "in_baseline": False,
        "in_loss": False, "truncated": False,
    }  # fmt: skip


async def test_every_answer_forbids_what_a_page_of_another_site_could_do(client):
    for path in ("/", "/runs/x", "/api/runs", "/api/nothing", "/static/main.js", "/static/no.js"):
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    page = (await client.get("/any/view?of=a#run")).text
    assert page == (await client.get("/")).text
    assert "<!doctype html>" in page.lower()


async def test_files_beside_the_page_are_out_of_reach(client):
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"):
        answer = await client.get(path)
        assert "make_app" not in answer.text
        assert "root:" not in answer.text


async def test_names_that_are_not_ours_and_other_sites_are_refused(client):
    for host in ("evil.example", "evil.example:9000", "127.0.0.1.evil.example", "", "10.0.0.1"):
        answer = await client.get("/api/runs", headers={"host": host})
        assert answer.status_code == 403, host
    for host in ("localhost", "localhost:1", "127.0.0.1", "[::1]:80", "127.1.2.3:9"):
        assert (await client.get("/api/runs", headers={"host": host})).status_code == 200, host
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert (await client.get("/api/runs", headers=headers)).status_code == 403
        assert (await client.get("/static/main.js", headers=headers)).status_code == 403
    # A link to the page may be followed; asking for data from elsewhere may not.
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await client.get("/", headers=link)).status_code == 200
    assert (await client.get("/api/runs", headers=link)).status_code == 403
    assert (await client.post("/api/runs")).status_code == 405


async def test_on_an_open_address_a_token_is_asked_for_once(recorded_run):
    async with client_of([recorded_run], host="0.0.0.0", token="s3cret") as client:
        for path in ("/", "/api/runs", "/static/main.js", "/?token=wrong", "/?token="):
            assert (await client.get(path)).status_code == 403
        answer = await client.get(f"{BASE}//evil.example/x?token=s3cret&a=b%26")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/evil.example/x?a=b%26"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await client.get("/api/runs")).status_code == 200
        # Only a name can be made to point here by others; an address cannot.
        assert (await client.get("/api/runs", headers={"host": "10.1.2.3:9"})).status_code == 200
        assert (await client.get("/api/runs", headers={"host": "evil.example"})).status_code == 403
        client.cookies.clear()
        client.cookies.set("agentrl-inspect", "wrong")
        assert (await client.get("/api/runs")).status_code == 403


async def test_a_run_that_is_gone_does_not_hide_the_others(run_copy, second_run):
    async with client_of([run_copy, second_run]) as client:
        assert len(await ask(client, "runs")) == 2
        shutil.rmtree(run_copy)
        gone, there = await ask(client, "runs")
        assert "does not exist" in gone["notes"][0]
        assert there["steps"] == 4
        assert "does not exist" in (await ask(client, "run", 404, run="copy"))["error"]


def test_the_address_is_one_that_can_be_typed():
    assert page_address("::1", 80, None) == "http://[::1]:80/"
    assert page_address("127.0.0.1", 80, "x") == "http://127.0.0.1:80/?token=x"
    assert "0.0.0.0" not in page_address("0.0.0.0", 80, "x")


@pytest.fixture
def inspecting(recorded_run) -> Iterator:
    started = []

    def start(*words: str):
        code = "from agentrl.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "inspect", str(recorded_run), "--no-browser", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_command_serves_until_ctrl_c(inspecting):
    process = inspecting()
    line = process.stdout.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert address, line
    assert line.startswith("1 run at ")
    with urllib.request.urlopen(f"{address[0]}api/pulse?{urlencode({'run': 'recorded'})}") as got:
        assert json.loads(got.read())["revision"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in out + err


def test_the_command_asks_strangers_for_a_token(inspecting):
    process = inspecting("--host", "0.0.0.0")
    line = process.stdout.readline()
    found = re.search(r":(\d+)/\?token=(\S{20,})", line)
    assert found, line
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/api/runs")
    refused.value.close()


def test_an_address_that_is_taken_is_a_message(inspecting):
    first = inspecting()
    found = re.search(r":(\d+)/", first.stdout.readline())
    assert found
    port = found[1]
    second = inspecting("--port", port)
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2
    assert "cannot listen at 127.0.0.1 port" in err
    assert "Traceback" not in err


async def test_a_label_is_written_only_where_that_is_allowed(
    recorded_run: Path, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    """Fails if a server that was not started for it writes, or another site can make one write."""
    assert await ask(client, "label") == {"can_label": False}
    assert (await client.post("/api/label", json={})).status_code == 405
    run = tmp_path / "mine"
    shutil.copytree(recorded_run, run)
    async with client_of([run], labels=True) as mine:
        assert await ask(mine, "label") == {"can_label": True}
        (hit,) = (await ask(mine, "find", run="mine", kind="train", step_max=1, limit=1))["hits"]
        rollout = hit["rollout_id"]
        given = {
            "run": "mine", "kind": "train", "step": 1, "rollout": rollout,
            "label": "hacked", "comment": "<b>", "by": "ann",
        }  # fmt: skip
        bad = [
            ({"json": given | {"rollout": "nobody"}}, 404),
            ({"json": given | {"label": "", "comment": ""}}, 400),
            ({"json": given | {"step": "1"}}, 400),
            ({"json": [given]}, 400),
            ({"json": given | {"comment": "x" * 100_000}}, 400),
            ({"json": given | {"first_token": 0}}, 400),
            ({"json": given | {"first_token": "0", "end_token": 1}}, 400),
            ({"json": given | {"first_token": 0, "end_token": 10**6}}, 400),
            ({"content": json.dumps(given), "headers": {"content-type": "text/plain"}}, 400),
            ({"json": given, "headers": {"sec-fetch-site": "cross-site"}}, 403),
            ({"json": given, "headers": {"host": "evil.example"}}, 403),
        ]
        for more, status in bad:
            answer = await mine.post("/api/label", **more)
            assert answer.status_code == status, answer.text
        assert not (run / "labels.jsonl").exists()
        answer = await mine.post("/api/label", json=given)
        assert answer.status_code == 200, answer.text
        shown = await ask(mine, "rollout", run="mine", kind="train", step=1, rollout=rollout)
        assert shown["labels"] == answer.json()["labels"]
        assert [(one["label"], one["comment"], one["by"]) for one in shown["labels"]] == [
            ("hacked", "<b>", "ann")
        ]
        found = await ask(mine, "find", run="mine", label="hacked")
        one = {"label": "wrong", "first_token": 0, "end_token": 1}
        answer = await mine.post("/api/label", json=given | one)
        assert [each["first_token"] for each in answer.json()["labels"]] == [None, 0]
        tokens = await ask(mine, "tokens", run="mine", kind="train", step=1, rollout=rollout)
        assert (tokens["response_start"], tokens["labels"]) == (0, answer.json()["labels"])
        assert [hit["rollout_id"] for hit in found["hits"]] == [rollout]
