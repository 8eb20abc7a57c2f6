"""Each sink with the real library, in a process of its own: some read settings when imported."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.metrics import MetricsLog
from agentrl.metrics.external import check_sinks, open_sinks
from agentrl.metrics.mlflow import tracked_name
from agentrl.metrics.prometheus import PrometheusArgs, PrometheusSink
from agentrl.metrics.tracker import RunIdentity, Tracker

VALUES = {"reward": 0.25, "eval/held out/score": 0.5, "eval/h/pass@2": 1.0, "kl": float("nan")}
PROGRAM = """
    import json, logging, sys
    from pathlib import Path
    from agentrl.metrics import MetricsLog
    from agentrl.metrics.external import open_sinks
    from agentrl.metrics.tracker import RunIdentity, Tracker

    logging.basicConfig()
    run = RunIdentity(directory=Path(sys.argv[1]), name="my run", config={"a.b": 1}, n_samples=2)
    log = MetricsLog([], slow=open_sinks(json.loads(sys.argv[2]), run))
    values = json.loads(sys.argv[3])
    for step in json.loads(sys.argv[4]):
        log.log(step, {**values, "step_twice": 2.0 * step})
    log.close()
    print("failures:", log.failures)
"""


def log_steps(run: Path, steps: list[int], **sinks: dict[str, object]) -> str:
    words = [str(run), json.dumps(sinks), json.dumps(VALUES), json.dumps(steps)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TRACKIO_DIR": str(run / "trackio"), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_wandb_offline_goes_on_with_one_run_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for steps in ([1, 2], [2, 3]):
        out = log_steps(tmp_path, steps, wandb={"mode": "offline", "names": "verl"})
        assert "failures: {}" in out
    files = sorted((tmp_path / "sinks" / "wandb").glob("offline-run-*/run-*.wandb"))
    run_id = (tmp_path / "sinks" / "wandb.id").read_text().strip()
    assert [path.stem for path in files] == [f"run-{run_id}"] * 2
    for path in files:
        data = path.read_bytes()
        assert b"critic/score/mean" in data
        assert b"val-core/held out/reward/mean@2" in data
        assert b"actor/kl_loss" not in data  # it is not a number


def test_trackio_keeps_local_steps_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    for steps in ([1, 2], [3]):
        assert "failures: {}" in log_steps(tmp_path, steps, trackio={"project": "mine"})
    with sqlite3.connect(tmp_path / "trackio" / "mine.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    database.close()
    assert sorted(step for _, step, _ in rows) == [1, 2, 3]
    assert len({name for name, _, _ in rows}) == 1
    assert json.loads(rows[0][2])["eval/held out/score"] == 0.5


def test_mlflow_keeps_steps_in_the_run_directory_and_goes_on_after_a_resume(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mlflow")
    for steps in ([1, 2], [3]):
        assert "failures: {}" in log_steps(tmp_path, steps, mlflow={"tags": {"who": "me"}})
    run_id = (tmp_path / "sinks" / "mlflow.id").read_text().strip()
    runs = list((tmp_path / "sinks" / "mlflow").glob("*/*/metrics"))
    assert [folder.parent.name for folder in runs] == [run_id]
    assert (runs[0].parent / "params" / "a.b").read_text() == "1"
    lines = (runs[0] / "step_twice").read_text().splitlines()
    assert [tuple(map(float, line.split()[1:3])) for line in lines] == [(2, 1), (4, 2), (6, 3)]
    assert (runs[0] / "eval/h/pass_2").is_file()


def test_a_tracker_that_cannot_be_opened_costs_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "sinks").write_text("a file where the folder should be")
    out = log_steps(tmp_path, [1, 2, 3, 4], mlflow={})
    assert "failures: {'MlflowSink': 4}" in out
    assert out.count("MlflowSink failed to write") == 1


def scraped(sink: PrometheusSink) -> str:
    assert sink.address is not None
    connection = http.client.HTTPConnection(*sink.address, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_prometheus_serves_the_latest_values_on_this_machine_only(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    run = RunIdentity(directory=tmp_path, name='odd "name"\n')
    sink = PrometheusSink(PrometheusArgs(port=0), run)
    sink.write(1, 0.0, {"reward": 0.25, "my/a-b": 1.0, "my/a_b": 2.0})
    sink.write(2, 0.0, {"reward": 0.5, "kl": float("nan")})
    assert sink.address is not None
    assert sink.address[0] == "127.0.0.1"
    text = scraped(sink)
    label = r'run="odd \"name\"\n"'
    assert f'agentrl_reward{{metric="reward",{label}}} 0.5' in text
    assert f'agentrl_my_a_b{{metric="my/a-b",{label}}} 1.0' in text
    assert f'agentrl_my_a_b{{metric="my/a_b",{label}}} 2.0' in text
    assert f'agentrl_kl{{metric="kl",{label}}} NaN' in text
    assert "# HELP agentrl_reward mean measured reward" in text
    assert f'agentrl_step{{metric="step",{label}}} 2.0' in text
    sink.close()
    sink.close()


def test_prometheus_writes_a_text_file_instead(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    path = tmp_path / "new" / "agentrl.prom"
    run = RunIdentity(directory=tmp_path, name="r")
    log = MetricsLog([], slow=open_sinks({"prometheus": {"textfile": str(path)}}, run))
    log.log(3, {"entropy": 0.5})
    log.close()
    assert 'agentrl_entropy{metric="entropy",run="r"} 0.5' in path.read_text()
    assert not log.failures


def test_a_port_that_is_taken_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = RunIdentity(directory=tmp_path, name="r")
        log = MetricsLog([], slow=open_sinks({"prometheus": {"port": port}}, run))
        log.log(1, {"entropy": 0.5})
        log.close()
    assert log.failures == {"PrometheusSink": 1}
    assert "Address already in use" in caplog.text


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        ({"wand": {}}, "log.sinks: got 'wand'; did you mean 'wandb'? valid: mlflow, prometheus"),
        ({"wandb": {"projekt": "x"}}, "log.sinks.wandb: got 'projekt'; did you mean 'project'?"),
        ({"wandb": {"mode": "off"}}, "log.sinks.wandb.mode: Input should be 'online' or 'offline'"),
        ({"prometheus": {"port": "x"}}, "log.sinks.prometheus.port: Input should be a valid int"),
        ({"prometheus": {"names": "trl"}}, "log.sinks.prometheus.names: Input should be 'agentrl'"),
    ],
)
def test_a_mistake_in_the_config_is_refused(sinks: dict[str, dict], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sinks(sinks)
    assert message in str(caught.value)


def test_a_library_that_is_missing_is_named_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A path without packages is a machine that has none of them.
    monkeypatch.setattr(sys, "path", [])
    sys.path_importer_cache.clear()
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    with pytest.raises(ConfigError, match=r"needs 'mlflow'.*pip install .*\[mlflow\]'"):
        check_sinks({"mlflow": {}})


@pytest.mark.parametrize(
    ("name", "tracked"),
    [
        ("eval/held_out/pass@2", "eval/held_out/pass_2"),
        ("env/../../etc", "env_____etc"),
        ("/env//a", "_env__a"),
        ("\n", "_"),
        ("", "_"),
    ],
)
def test_a_name_for_mlflow_is_a_path_of_its_own(name: str, tracked: str) -> None:
    assert tracked_name(name) == tracked


def test_a_tracker_that_never_opens_is_given_up() -> None:
    class Never(Tracker):
        opened = 0

        def _open(self) -> object:
            self.opened += 1
            raise ConnectionError("nobody there")

        def _send(self, run: object, step: int, wall_time_s: float, values: object) -> None:
            raise AssertionError("it was never opened")

        def _finish(self, run: object) -> None:
            raise AssertionError("it was never opened")

    sink = Never()
    log = MetricsLog([sink])
    for step in range(6):
        log.log(step, {"reward": 1.0})
    log.close()
    # The service may be back after a while, but waiting for it costs time at every step.
    assert sink.opened == 3
    assert log.failures == {"Never": 6}
