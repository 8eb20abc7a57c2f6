"""The hub as every command meets it: asked for names of the hub, once, and for nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentrl.config.paths import PathStart, meant_as_folder
from agentrl.config.schema import ModelSection
from agentrl.disk.model_source import model_source
from agentrl.errors import ConfigError
from agentrl.models.hub import require_on_hub
from tests.runtime.tiny_project import write_project

PROGRAM = """
import json, sys, time
from agentrl.cli import main

for words in json.load(sys.stdin):
    print(f"## {json.dumps(words)}", flush=True)
    began = time.perf_counter()
    try:
        main(words)
    except SystemExit as stop:
        print(f"## {stop.code or 0} {time.perf_counter() - began}", flush=True)
"""

BEST = """
import sys
from agentrl.config.schema import ModelSection
from agentrl.disk.model_source import model_source
from agentrl.errors import AgentrlError
from agentrl.fit.data.vocabulary import vocabulary_of
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.models.source import load_tokenizer, check_language_model, stored_config
from agentrl.models.vision.reader import load_reader
from agentrl.train.model.load import load_model
from agentrl.train.model.value_head import _stored_heads
from agentrl.train.score_model import load_score_model

ASK = (
    vocabulary_of,
    open_reward_model,
    check_language_model,
    stored_config,
    lambda path: load_reader(path, None),
    lambda path: load_tokenizer(ModelSection(path=path)),
    lambda path: load_model(ModelSection(path=path, device="cpu")),
    lambda path: model_source(ModelSection(path=path)),
    _stored_heads,
    load_score_model,
)
for name in ("quickstart", "nobody/nothing"):
    for ask in ASK:
        try:
            ask(name)
        except AgentrlError as error:
            print(name, str(error).count(chr(10)), error)
print(vocabulary_of("some/body"))
"""


@contextmanager
def hub(status: int = 404) -> Iterator[tuple[str, list[str]]]:
    """Serve one answer for everything; gives its address and the paths that were asked for."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def python(code: str, *, folder: Path, address: str, given: str = "") -> str:
    """What a process without the cache of this machine prints, with the hub at `address`."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": address,
            "HF_HOME": str(folder / "hf"),
        },
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_commands_ask_the_hub_for_its_names_alone(tmp_path: Path) -> None:
    # Fails if a command gives transformers a path that was not looked at: 'quickstart', or a folder
    # that is gone, with five retries each.
    run = str(write_project(tmp_path, run__dir=str(tmp_path / "runs")))
    (tmp_path / "runs").mkdir()
    gone = "runs/gone"
    quiet = [
        ["train", run, "--dry-run", "model.path=quickstart"],
        ["train", run, f"model.path={gone}"],
        ["train", run, "model.path=./gone"],
        ["train", run, "model.path=gone/"],
        ["train", run, "algorithm.preset=ppo", "critic.path=a/b/c"],
        ["train", run, f"algorithm.distill.teacher.path={gone}"],
        ["train", run, "reward.models.judge.path=quickstart", "reward.models.judge.weight=1"],
        ["train", run, f"reward.models.judge.path={gone}", "reward.models.judge.weight=1"],
        ["train", run, f"dataset.source=hf:{gone}"],
        ["train", run, "dataset.source=hf:./gone"],
        ["rollout", run, "--model", gone],
        ["eval", run, "--model", "~/gone"],
        ["preflight", run, "--model", gone],
        ["export", gone, "out"],
        ["serve", gone],
        ["rm", "score", gone, "train.jsonl", "--out", "scores"],
        ["simulate", "scale", "--tokenizer", gone],
        ["config", "show", run],
        ["env", "check", "vowels.py:Vowels"],
        ["doctor", gone],
        ["traj", "list", gone],
    ]
    named = [
        ["train", run, "model.path=nobody/nothing"],
        ["eval", run, "--model", "nobody/nothing"],
        ["serve", "nobody/nothing"],
        ["train", run, "dataset.source=hf:nobody/rows"],
    ]
    with hub() as (address, asked):
        given = json.dumps([*quiet, *named])
        out = python(PROGRAM, folder=tmp_path, address=address, given=given)
        assert " ".join(out.split()).count("is read as a folder") >= 12, out
        assert asked == ["/nobody/nothing/resolve/main/config.json", "/api/datasets/nobody/rows"], (
            out
        )
        assert out.count("answers 404: it has no") == 4, out


@pytest.mark.slow
def test_whatever_loads_a_model_asks_once_and_never_for_the_quickstart_model(
    tmp_path: Path,
) -> None:
    snapshot = tmp_path / "hf" / "hub" / "models--some--body" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama", "vocab_size": 77}')
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("1")
    with hub(401) as (address, asked):
        out = python(BEST, folder=tmp_path, address=address)
    of_models = [path for path in asked if "some/body" not in path and "harness" not in path]
    assert of_models == ["/nobody/nothing/resolve/main/config.json"]
    assert out.count("answers 401: it has no model") == 10, out
    assert out.strip().endswith("\n77"), out
    began = time.perf_counter()
    out = python(BEST, folder=tmp_path, address="http://127.0.0.1:1")
    refused = [line for line in out.splitlines() if line.startswith("nobody/nothing")]
    assert len(refused) == 10, out
    assert all(line.startswith("nobody/nothing 0 ") for line in refused), out
    assert all("does not answer" in line for line in refused), out
    assert out.strip().endswith("\n77"), out
    assert time.perf_counter() - began < 120  # five retries of ten files took longer


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_cached_name_needs_no_leave_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Fails if a gated model that was fetched once is refused to who has not logged in, or if a
    folder of the same name as its owner hides it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    name = f"gated/kept{status}"
    (tmp_path / "gated").mkdir()
    assert PathStart(base=tmp_path).model(name, "model.path") == str(tmp_path / name)
    snapshot = tmp_path / "hub" / f"models--gated--kept{status}" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert PathStart(base=tmp_path).model(name, "model.path") == name
    with hub(status) as (address, asked):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        require_on_hub(name, key="model.path", base=tmp_path)
        with pytest.raises(ConfigError, match=f"answers {status}: it has no model"):
            require_on_hub(f"gated-other/{status}", key="model.path", base=tmp_path)
    assert sum("resolve" in path for path in asked) == 2


def test_a_folder_that_is_not_there_is_told_from_a_name_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "sft").mkdir()
    for text in ("./x", "../x", "/x", "~/x", "a/b/c", "org/name/", "runs/sf", "a\\b"):
        assert meant_as_folder(text, tmp_path), text
    for text in ("org/name", "gpt2", "Qwen/Qwen3-0.6B"):
        assert not meant_as_folder(text, tmp_path), text
    with pytest.raises(ConfigError, match=r"(?s)model\.path.*did you mean 'sft'.*hub was not"):
        model_source(ModelSection(path=str(tmp_path / "runs" / "sf")))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="is a file; give the folder"):
        model_source(ModelSection(path=str(tmp_path / "model.gguf")))
