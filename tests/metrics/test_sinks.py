from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentrl.metrics import JsonlSink, MetricsLog, TensorBoardSink, read_metrics
from agentrl.plugins.distribution import install_command


def steps_in(path: Path) -> list[int]:
    return [record["step"] for record in read_metrics(path)]


def test_a_line_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    # Fails if the sink buffers: the file is read while it is open.
    path = tmp_path / "deep" / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(1, 1700000000.12345, {"reward": 0.25, "train/loss": -1e-9})
    assert json.loads(path.read_text()) == {
        "step": 1,
        "time": 1700000000.123,
        "reward": 0.25,
        "train/loss": -1e-9,
    }
    sink.close()
    sink.close()


def test_numbers_json_does_not_have_become_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(1, 0.0, {"a": math.nan, "b": math.inf, "c": 1.0})
    sink.close()
    line = (tmp_path / "m.jsonl").read_text()
    assert "NaN" not in line
    assert json.loads(line)["a"] is None


def test_names_of_the_line_itself_are_refused(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="'step'"):
        sink.write(1, 0.0, {"step": 2.0})
    sink.close()


@pytest.mark.parametrize(
    ("tail", "steps"),
    [
        (b'{"step": 3, "time"', [1, 2, 4]),
        (b'{"step": 3', [1, 2, 4]),
        (b"\0\0\0\0", [1, 2, 4]),
        (b"\0\0\0\n\0\0", [1, 2, 4]),
        (b'{"step": 3, "time": 0}', [1, 2, 3, 4]),
        (b"", [1, 2, 4]),
    ],
)
def test_the_end_of_a_killed_writer_is_mended(
    tail: bytes, steps: list[int], tmp_path: Path
) -> None:
    # Fails if the next line is glued to the torn one, or if a whole line is thrown away.
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1, "time": 0}\n{"step": 2, "time": 0}\n' + tail)
    sink = JsonlSink(path)
    sink.write(4, 0.0, {})
    sink.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == steps


def test_truncate_after_leaves_no_step_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    first = JsonlSink(path)
    for step in (0, 1, 2, 2, 3, 4):
        first.write(step, 0.0, {"reward": 1.0})
    first.close()
    again = JsonlSink(path)
    again.truncate_after(2)
    assert steps_in(path) == [0, 1, 2, 2]
    again.truncate_after(9)
    for step in (3, 4):
        again.write(step, 0.0, {"reward": 2.0})
    again.close()
    assert steps_in(path) == [0, 1, 2, 2, 3, 4]


def test_a_process_killed_while_it_writes_loses_at_most_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = textwrap.dedent(
        f"""
        from pathlib import Path
        from agentrl.metrics import JsonlSink
        sink = JsonlSink(Path({str(path)!r}))
        for step in range(10**9):
            sink.write(step, 0.0, {{"x" * 50 + str(n): 1.0 for n in range(20)}})
            if step == 200:
                print("go", flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.wait()
    child.stdout.close()
    JsonlSink(path).close()
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == list(range(len(steps)))
    assert len(steps) > 200


class BrokenSink:
    def __init__(self) -> None:
        self.calls = 0

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        self.calls += 1
        raise OSError(28, "No space left on device")

    def truncate_after(self, step: int) -> None: ...

    def close(self) -> None:
        raise RuntimeError("already gone")


def test_a_sink_that_fails_is_counted_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Fails if the error escapes, if the sinks after it are skipped, or if each failure warns.
    broken, good = BrokenSink(), JsonlSink(tmp_path / "m.jsonl")
    log = MetricsLog([broken, good])
    for step in range(3):
        log.log(step, {"reward": 1.0})
    log.truncate_after(1)
    log.close()
    assert steps_in(tmp_path / "m.jsonl") == [0, 1]
    assert log.failures == {"BrokenSink": 4}
    warnings = [record for record in caplog.records if "No space left" in record.getMessage()]
    assert len(warnings) == 1
    assert len(caplog.records) == 1


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    # A file-size limit in a process of its own stands for the full disk.
    path = tmp_path / "m.jsonl"
    code = textwrap.dedent(
        f"""
        import resource, signal
        from pathlib import Path
        from agentrl.metrics import JsonlSink, MetricsLog
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        log = MetricsLog([JsonlSink(Path({str(path)!r}))])
        for step in range(40):
            log.log(step, {{"reward": 1.0}})
        print(log.failures)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "JsonlSink" in done.stdout
    data = path.read_bytes()
    assert data.endswith(b"\n")
    assert steps_in(path) == list(range(data.count(b"\n")))


def test_tensorboard_reads_what_was_written_and_hides_what_was_cut(tmp_path: Path) -> None:
    # In a process of its own: the reader of TensorBoard warns on import, the sink must not.
    code = textwrap.dedent(
        f"""
        import sys, warnings
        from pathlib import Path
        warnings.simplefilter("error")
        from agentrl.metrics import TensorBoardSink
        assert "tensorboard" not in sys.modules
        for redo in (False, True):
            sink = TensorBoardSink(Path({str(tmp_path)!r}) / "tb")
            if redo:
                sink.truncate_after(2)
            for step in range(3 if redo else 1, 6):
                sink.write(step, 1700000000.0 + 10 * redo + step, {{"reward": step + redo / 2}})
            sink.close()
            sink.close()
        assert "torch" not in sys.modules
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        reader = EventAccumulator(str(Path({str(tmp_path)!r}) / "tb"))
        reader.Reload()
        print([(event.step, event.value) for event in reader.Scalars("reward")])
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]"


def test_tensorboard_makes_no_noise(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from agentrl.metrics import TensorBoardSink
sink = TensorBoardSink(Path({str(tmp_path)!r}))
sink.write(1, 0.0, {{"reward": 1.0}})
sink.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_tensorboard_is_said_plainly(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
sys.modules["tensorboard"] = None
from agentrl.metrics import TensorBoardSink
try:
    TensorBoardSink(Path({str(tmp_path)!r}))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("ConfigError"), done.stderr
    assert install_command("track") in done.stdout


def test_sinks_meet_the_protocol(tmp_path: Path) -> None:
    log = MetricsLog([JsonlSink(tmp_path / "m.jsonl"), TensorBoardSink(tmp_path / "tb")])
    log.log(1, {"reward": 0.5})
    log.close()
    assert log.failures == {}
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))
