"""`agentrl train --dry-run`: everything wrong is named at once, and a good project passes."""

from pathlib import Path

import pytest

from agentrl.config import load_config, parse_config
from agentrl.types.finding import Finding, Status
from tests.preflight.check_lines import dry_run
from tests.runtime.tiny_project import write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("preflight"))


@pytest.fixture(autouse=True)
def _in_its_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)  # where the paths of overrides start


async def check(project: Path, *overrides: str) -> dict[str, Finding]:
    return await dry_run(load_config(project, overrides), project.parent)


async def test_a_good_project_is_ready(project: Path) -> None:
    checks = await check(project)
    assert {item.status for item in checks.values()} == {Status.OK}
    assert "train 12, held 3" in checks["datasets"].detail
    assert not (project.parent / "runs").exists()


@pytest.mark.parametrize(
    ("override", "name", "words"),
    [
        ("model.path=./nowhere", "model", ["nowhere", "does not exist"]),
        ("env.target=vowels.py:Vowel", "environment", ["Vowel", "did you mean 'Vowels'"]),
        ("env.target=vowles.py:Vowels", "environment", ["vowles.py", "vowels.py"]),
        ("env.args={loud: true}", "environment", ["loud", "delay_s"]),
        ("env.tools=[json:dumps_all]", "tools", ["dumps_all", "dumps"]),
        ("chat.tool_parser=hermez", "chat", ["hermez", "hermes"]),
        ("chat.template=chatlm", "chat", ["chatlm", "chatml"]),
        ("dataset.source=missing.jsonl", "datasets", ["missing.jsonl"]),
        ("env.args={fail: reset}", "prompts", ["never resets", "train-0"]),
        ("sandbox.backend=bubblewarp", "sandbox", ["bubblewarp", "bubblewrap"]),
        ("health.rules=['entropie < 1 for 2 steps -> stop']", "rules", ["entropie", "entropy"]),
        ("log.sinks={wandbb: {}}", "metrics", ["wandbb", "wandb"]),
    ],
)
async def test_what_is_wrong_is_named(
    project: Path, override: str, name: str, words: list[str]
) -> None:
    checks = await check(project, override)
    assert checks[name].status is Status.FAIL, checks
    assert [word for word in words if word not in checks[name].detail] == []
    # One mistake does not hide the rest of the report.
    assert checks["budget"].status is Status.OK


@pytest.mark.parametrize(
    ("overrides", "name", "words"),
    [
        (
            ["serving.engine=external", "serving.urls=[http://127.0.0.1:1]"],
            "engines",
            ["http://127.0.0.1:1", "nobody", "agentrl serve"],
        ),
        (["serving.engine=vllm", "serving.args={port: 1}"], "engines", ["port", "launcher"]),
        (["serving.engine=vllm", "sync.backend=ipc"], "engines", ["ipc", "CUDA", "'shm'"]),
        (["sync.dense_every=4"], "engines", ["sync.dense_every", "'inprocess'"]),
        (["serving.engine=vllm", "sync.directory=x"], "engines", ["sync.directory", "'shm'"]),
        (
            [
                "runtime=ray",
                "serving.engine=vllm",
                "runtime.gpus.trainer=1",
                "runtime.gpus.engine=1",
                "sync.directory=x",
                "sync.dense_every=2",
            ],
            "engines",
            ["sync.directory would have no effect", "'collective'"],
        ),
        (["runtime=ray", "runtime.gpus.engine=1"], "cluster", ["runtime.gpus.engine", "embedded"]),
        (
            [
                "runtime=ray",
                "runtime.placement=colocated",
                "serving.engine=external",
                "serving.urls=[http://127.0.0.1:1]",
            ],
            "cluster",
            ["runtime.placement", "serving.urls"],
        ),
        (["schedule.staleness_threshold=1"], "schedule", ["partial_rollout: true"]),
        (["schedule.oversample=2", "schedule.staleness_threshold=1"], "schedule", ["oversample"]),
        (["runtime=ray", "runtime.address=127.0.0.1:1"], "cluster", ["127.0.0.1:1", "ray start"]),
        (["runtime=ray", "runtime.gpus=64"], "cluster", ["too small", "GPU"]),
    ],
)
async def test_a_fleet_that_cannot_be_had_is_named(
    project: Path, overrides: list[str], name: str, words: list[str]
) -> None:
    """Fails if a key that has no effect, or an engine nobody has, shows only once a run began."""
    checks = await check(project, *overrides)
    assert checks[name].status is Status.FAIL, checks
    assert [word for word in words if word not in checks[name].detail] == [], checks[name].detail


async def test_a_prompt_that_fills_the_context(project: Path) -> None:
    config = load_config(project)
    data = config.model_dump(mode="json")
    data["rollout"] |= {"max_context_tokens": 24, "max_response_tokens": 8, "max_turn_tokens": 8}
    prompts = (await dry_run(parse_config(data), project.parent))["prompts"]
    assert prompts.status is Status.FAIL
    assert "max_context_tokens (24)" in prompts.detail


async def test_a_taken_run_directory(project: Path, tmp_path: Path) -> None:
    taken = tmp_path / "tiny" / "trajectories" / "train"
    taken.mkdir(parents=True)
    (taken / "step_000001.parquet").write_bytes(b"x")
    checks = await check(project, f"run.dir={tmp_path}")
    assert checks["run directory"].status is Status.FAIL
    assert "run.name=tiny-2" in checks["run directory"].detail
