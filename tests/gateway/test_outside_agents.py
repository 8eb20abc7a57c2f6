"""Agents in other processes: they ask for rollouts, play them, and a run trains on them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentrl.chat import ChatFormat, build_parser
from agentrl.config.schema import RolloutSection
from agentrl.data import TrajectoryStore
from agentrl.errors import ConfigError
from agentrl.gateway import OutsideAgent
from agentrl.gateway.app import TOKEN_HEADER
from agentrl.gateway.asked import MOST_TASK_BYTES
from agentrl.gateway.outside import TOKEN_ENV, AgentDesk, gateway_token
from agentrl.metrics.sinks import read_metrics
from agentrl.rollout import RolloutWorker
from agentrl.runtime.sampling.brought_tasks import BroughtTasks
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup
from tests.gateway.gateway_fakes import send
from tests.runtime.tiny_project import Agentrl, agentrl, write_project

HEADERS = {"content-type": "application/json", TOKEN_HEADER: "letmein"}
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "outside_agent.py"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, HEADERS[TOKEN_HEADER])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def _played(server: str, reward: Any, **wanted: Any) -> dict[str, Any]:
    session = _post(f"{server}/sessions/next", {"wait_s": 10, **wanted})
    assert session["session"], session
    ask = {"model": "policy", "messages": session["task"]["messages"]}
    _post(f"{session['base_url']}/chat/completions", ask)
    _post(f"{session['base_url']}/reward", reward)
    return session


def _worker(
    chat: ChatFormat, port: int, *, timeout_s: float = 300.0, retries: int = 0, **args: Any
) -> RolloutWorker:
    return RolloutWorker(
        generator=TokenClient([ScriptedEngine(["hi"], ByteTokenizer())]),
        chat=chat,
        parser=build_parser("hermes"),
        make_env=lambda: OutsideAgent(port=port, **args),
        section=RolloutSection(retries=retries, timeout_s=timeout_s),
    )


def _sampling(chat: ChatFormat) -> SamplingParams:
    return SamplingParams(max_tokens=100, stop_token_ids=chat.stop_token_ids)


def _group(
    chat: ChatFormat, port: int, *, task: Task, n: int = 1, **more: Any
) -> asyncio.Task[TrajectoryGroup]:
    worker = _worker(chat, port, **more)
    return asyncio.create_task(
        worker.run_group(task, group_id=f"g/{task.id}", n=n, sampling=_sampling(chat), seed=1)
    )


async def _listening(port: int) -> None:
    """Wait until the gateway that a worker opens can be asked."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


async def test_rollouts_are_handed_out_and_end_with_their_reward(chat: ChatFormat) -> None:
    port = _free_port()
    server = f"http://127.0.0.1:{port}"
    first = _group(chat, port, task=Task(id="a", prompt="go", label="3"), n=2)
    other = _group(chat, port, task=Task(id="b", prompt="stay"))
    await _listening(port)
    session = await asyncio.to_thread(_played, server, 0.5, task="b")
    assert (session["group"], session["rollout"]) == ("g/b", "g/b/0")
    for reward in (0.25, {"reward": 0.75, "score": 1}):
        session = await asyncio.to_thread(_played, server, reward, task="a")
        assert session["task"]["messages"] == [{"role": "user", "content": "go"}]
        assert session["task"]["label"] == "3"
    rows = (*(await first).trajectories, *(await other).trajectories)
    assert [(row.reward, row.termination) for row in rows] == [
        (reward, Termination.ENV_DONE) for reward in (0.25, 0.75, 0.5)
    ]
    assert all(sum(row.response_mask) for row in rows)
    none = await asyncio.to_thread(_post, f"{server}/sessions/next", {})
    assert none["session"] is None


async def test_an_agent_that_died_while_it_waited_gets_nothing(chat: ChatFormat) -> None:
    port = _free_port()
    first = _group(chat, port, task=Task(id="a", prompt="go"))
    await _listening(port)
    body = json.dumps({"task": "b", "wait_s": 20})
    names = {"host": "localhost", "content-length": len(body), **HEADERS}
    lines = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    head = f"POST /sessions/next HTTP/1.1\r\n{lines}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((head + body).encode())
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.close()
    await asyncio.sleep(0.2)
    other = _group(chat, port, task=Task(id="b", prompt="stay"))
    for task in ("b", "a"):
        await asyncio.to_thread(_played, f"http://127.0.0.1:{port}", 1, task=task)
    assert (await first).trajectories[0].reward == (await other).trajectories[0].reward == 1.0


@pytest.mark.parametrize("claimed", [True, False])
async def test_an_agent_that_is_gone_is_no_reward(chat: ChatFormat, claimed: bool) -> None:
    port = _free_port()
    limits: dict[str, Any] = {"timeout_s": 0.3} if claimed else {"claim_timeout_s": 0.3}
    group = _group(chat, port, task=Task(id="a", prompt="go"), **limits)
    await _listening(port)
    if claimed:
        url = f"http://127.0.0.1:{port}/sessions/next"
        session = await asyncio.to_thread(_post, url, {"wait_s": 100})
        assert session["session"]
    row = (await group).trajectories[-1]
    assert (row.termination, row.reward) == (Termination.ENV_CRASHED, None)
    assert ("timeout_s" if claimed else "no agent asked") in row.termination_detail


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"tusk": 1}', b'{"task": {}}', b'{"wait_s": -1}'])
async def test_a_wrong_question_for_a_rollout_is_refused(chat: ChatFormat, body: bytes) -> None:
    port = _free_port()
    group = _group(chat, port, task=Task(id="a", prompt="go"))
    await _listening(port)

    def ask() -> int:
        url = f"http://127.0.0.1:{port}/sessions/next"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, HEADERS), timeout=120):
                return 200
        except urllib.error.HTTPError as error:
            return error.code

    assert await asyncio.to_thread(ask) == 400
    group.cancel()
    await asyncio.gather(group, return_exceptions=True)


# -- tasks of an agent's own ----------------------------------------------------------------------

HELLO = [{"role": "user", "content": "go"}]
MINE: dict[str, Any] = {"task": {"id": "mine/1", "prompt": "go", "label": 3, "metadata": {"a": 1}}}


async def test_a_task_that_an_agent_brings_is_a_group_of_its_own(chat: ChatFormat) -> None:
    # Fails if it is handed to another agent, is recorded under another task, waits for what the
    # dataset's rollouts wait for, or if more of them run at once than may.
    port = _free_port()
    server = f"http://127.0.0.1:{port}"
    ended: list[TrajectoryGroup] = []

    @asynccontextmanager
    async def taking(**limits: Any) -> AsyncIterator[BroughtTasks[TrajectoryGroup]]:
        brought = BroughtTasks(
            _worker(chat, port, **limits), sampling=_sampling(chat), seed=1, on_group=ended.append
        )
        desk = OutsideAgent(port=port)
        async with brought.taken(lambda begin, most: desk.taking_tasks(begin, most=most), most=1):
            yield brought
            await brought.rest()

    async with taking():
        session = await asyncio.to_thread(_post, f"{server}/sessions", MINE)
        with pytest.raises(urllib.error.HTTPError, match="429") as refused:
            await asyncio.to_thread(_post, f"{server}/sessions", MINE)
        refused.value.close()
        assert session["task"] == {
            "id": "mine/1", "messages": HELLO, "label": 3, "metadata": {"a": 1}
        }  # fmt: skip
        assert (await asyncio.to_thread(_post, f"{server}/sessions/next", {}))["session"] is None
        ask = {"model": "policy", "messages": HELLO}
        await asyncio.to_thread(_post, f"{session['base_url']}/chat/completions", ask)
        await asyncio.to_thread(_post, f"{session['base_url']}/reward", 0.5)
    async with taking(timeout_s=0.2, retries=1):
        unnamed = {"task": {"messages": HELLO}}
        left = await asyncio.to_thread(_post, f"{server}/sessions", unnamed)
    (row,), (failed,) = (group.trajectories for group in ended)
    assert (row.task_id, row.reward, row.termination) == ("mine/1", 0.5, Termination.ENV_DONE)
    assert row.group_id == session["group"] == "own/0000-mine/1"
    assert sum(row.response_mask)
    assert (failed.task_id, failed.reward) == (left["task"]["id"], None)
    assert failed.termination is Termination.ENV_CRASHED
    assert "did not play it to its end" in failed.termination_detail


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"[", 400, "not JSON"),
        (b'{"task": {"prompt": NaN}}', 400, "not JSON"),
        (b'{"task": {"prompt": "\\ud800"}}', 400, ""),
        (b'{"tusk": 1}', 400, "expected an object with task"),
        (b'{"task": "mine"}', 400, "expected an object with id, prompt"),
        (b'{"task": {"prompt": "a", "lable": 1}}', 400, "did you mean 'label'"),
        (b'{"task": {}}', 400, "give task.prompt"),
        (b'{"task": {"prompt": "a", "messages": []}}', 400, "give task.prompt"),
        (b'{"task": {"prompt": ""}}', 400, "is empty"),
        (b'{"task": {"prompt": 3}}', 400, "the prompt of the task is int 3"),
        (b'{"task": {"messages": [{"role": "boss", "content": "a"}]}}', 400, "unknown role"),
        (b'{"task": {"prompt": "a", "metadata": 1}}', 400, "task.metadata is 1"),
        (b'{"task": {"prompt": "a", "id": "a b"}}', 400, "task.id is 'a b'"),
        pytest.param(b" " * MOST_TASK_BYTES + b"{}", 413, "at most 1048576", id="large"),
        (b'{"task": {"prompt": "a"}}', 400, "train.steps=0"),
    ],
)
async def test_a_task_that_cannot_be_taken_is_refused(body: bytes, status: int, said: str) -> None:
    desk = AgentDesk(host="127.0.0.1", port=1, token="letmein")
    assert (await send(desk, "POST", "/sessions", body, {}))[0] == 401
    got, answer = await send(desk, "POST", "/sessions", body, {TOKEN_HEADER: "letmein"})
    assert got == status
    assert said in json.loads(answer)["error"]["message"]


def test_a_token_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="NO_SUCH_TOKEN"):
        OutsideAgent(token_env="NO_SUCH_TOKEN")
    monkeypatch.delenv(TOKEN_ENV)
    with pytest.raises(ConfigError, match=f"{TOKEN_ENV}.* not at 0"):
        OutsideAgent(host="0.0.0.0")
    # One for all environments of the process, and hard to guess.
    assert len(gateway_token()) >= 32
    assert gateway_token() == gateway_token()


FOREIGN = [
    ({"host": "evil.example:80"}, 403, "does not go by the name"),
    ({"origin": "http://evil.example"}, 403, "web page"),
    ({"origin": "null"}, 403, "web page"),
    ({"sec-fetch-site": "cross-site"}, 403, "web page"),
    ({"content-type": "text/plain"}, 403, "expected application/json"),
    ({"content-type": "application/x-www-form-urlencoded"}, 403, "expected application/json"),
    ({TOKEN_HEADER: "wrong"}, 401, "access token"),
    ({TOKEN_HEADER: ""}, 401, "access token"),
]


@pytest.mark.parametrize("path", ["sessions/next", "sessions", "v1/reward"])
@pytest.mark.parametrize(("marks", "status", "said"), FOREIGN)
async def test_a_web_page_gets_nothing(
    path: str, marks: dict[str, str], status: int, said: str
) -> None:
    """Fails if a page in a browser of this machine can take a rollout or post a reward."""
    desk = AgentDesk(host="127.0.0.1", port=0, token="letmein")
    await desk.start()
    async with httpx2.AsyncClient() as http:
        url = f"{desk.address}/{path}"
        answer = await http.post(url, headers={**HEADERS, **marks}, content=b"1")
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert "access-control-allow-origin" not in answer.headers
        # Typed into the address bar, or asked by a picture.
        assert (await http.get(url, headers=HEADERS)).status_code == 404


async def test_names_that_are_allowed_are_answered() -> None:
    desk = AgentDesk(host="127.0.0.1", port=0, token="letmein", names=["trainer"])
    await desk.start()
    async with httpx2.AsyncClient() as http:
        url = f"{desk.address}/sessions/next"
        for name, status in (("trainer:8642", 200), ("localhost", 200), ("trainer.evil", 403)):
            answer = await http.post(url, headers={**HEADERS, "host": name}, content=b"{}")
            assert answer.status_code == status, name
        # An SDK of OpenAI sends the token as its key.
        answer = await http.post(url, headers={"authorization": "Bearer letmein"})
        assert answer.json()["session"] is None


PAYS_FOR_VOWELS = """
import sys

sys.path.insert(0, FOLDER)
import outside_agent


def play(session):
    ask = {"model": "policy", "messages": session["task"]["messages"]}
    turn = outside_agent.post(session["base_url"] + "/chat/completions", ask)
    text = turn["choices"][0]["message"]["content"] or ""
    return sum(c in "aeiouAEIOU" for c in text) / max(1, len(text))


outside_agent.play = play
outside_agent.main(sys.argv[1])
"""


@contextmanager
def _agents(port: int, program: Path = EXAMPLE, count: int = 4) -> Iterator[None]:
    words = [sys.executable, str(program), f"http://127.0.0.1:{port}"]
    running = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def _project(folder: Path, **changes: Any) -> Path:
    return write_project(folder, rollout__max_assistant_turns=3, **changes)


def test_rollouts_of_outside_agents_are_recorded_also_before_a_kill(tmp_path: Path) -> None:
    path, port, out = _project(tmp_path, train__steps=0), _free_port(), tmp_path / "rec"
    words = ("gateway", "serve", path, "--port", port, "--out", out, "--limit", 3)
    with _agents(port):
        status, text = agentrl(tmp_path / "log", *words)
    assert status == 0, text
    assert "12 rollouts, 12 scored" in text
    rows = [item.trajectory for item in TrajectoryStore(out / "trajectories").read("train")]
    assert len({row.rollout_id for row in rows}) == 12
    assert all(row.num_action_tokens for row in rows)
    # Once more with an agent that dies in the middle, and a kill of the server.
    killed = tmp_path / "killed"
    process = Agentrl(tmp_path / "log2", *words[:-3], killed, "--limit", 3)
    server = f"http://127.0.0.1:{port}"
    process.wait_for("sessions/next")
    _first_rollouts(server, 4)
    deadline = time.monotonic() + 120
    mine = _post(f"{server}/sessions", MINE)
    _post(f"{mine['base_url']}/chat/completions", {"model": "policy", "messages": HELLO})
    _post(f"{mine['base_url']}/reward", 1)
    while len(TrajectoryStore(killed / "trajectories").steps("train")) < 2:
        assert time.monotonic() < deadline, process.text()
        time.sleep(0.05)
    _post(f"{server}/sessions/next", {"wait_s": 10})
    process.send(signal.SIGKILL)
    process.wait()
    rows = [item.trajectory for item in TrajectoryStore(killed / "trajectories").read("train")]
    assert len({row.rollout_id for row in rows}) == 4 + 1
    assert [row.reward for row in rows if row.task_id == "mine/1"] == [1.0]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def _first_rollouts(server: str, count: int) -> None:
    """Play the rollouts of one group."""
    deadline = time.monotonic() + 60
    task = ""
    while count:
        try:
            session = _played(server, 0.5, **({"task": task} if task else {}))
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            continue
        task = session["task"]["id"]
        count -= 1


def test_a_run_trains_on_outside_agents(tmp_path: Path) -> None:
    port = _free_port()
    path = _project(tmp_path, train__steps=2, eval__datasets={})
    program = tmp_path / "agent.py"
    program.write_text(PAYS_FOR_VOWELS.replace("FOLDER", repr(str(EXAMPLE.parent))))
    with _agents(port, program):
        status, text = agentrl(tmp_path / "log", "gateway", "serve", path, "--port", port)
    assert status == 0, text
    assert "Traceback" not in text
    run = tmp_path / "runs" / "tiny"
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "train/loss" in line]
    assert len(lines) == 2
    rows = [item.trajectory for item in TrajectoryStore(run / "trajectories").read("train")]
    assert {row.rule.reward_trusted for row in rows} == {True}
    assert len({row.rollout_id for row in rows}) == 2 * 3 * 4


def test_a_killed_run_goes_on_with_the_same_agents(tmp_path: Path) -> None:
    port = _free_port()
    path = _project(tmp_path, train__steps=3, eval__datasets={}, checkpoint__every_steps=1)
    program = tmp_path / "agent.py"
    program.write_text(PAYS_FOR_VOWELS.replace("FOLDER", repr(str(EXAMPLE.parent))))
    words = ("gateway", "serve", path, "--port", port)
    run = tmp_path / "runs" / "tiny"
    store = TrajectoryStore(run / "trajectories")
    with _agents(port, program):
        process = Agentrl(tmp_path / "log", *words)
        deadline = time.monotonic() + 100
        while not store.steps("train"):
            assert time.monotonic() < deadline, process.text()
            time.sleep(0.05)
        process.send(signal.SIGKILL)
        process.wait()
    with _agents(port, program):  # the first ones may have left with the server
        status, text = agentrl(tmp_path / "log2", *words, "--resume")
    assert status == 0, text
    steps = [line["step"] for line in read_metrics(run / "metrics.jsonl") if "train/loss" in line]
    assert sorted(set(steps)) == [1, 2, 3]
    rows = [item.trajectory for item in store.read("train")]
    assert len({row.rollout_id for row in rows}) == len(rows) == 3 * 3 * 4
