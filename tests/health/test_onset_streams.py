from __future__ import annotations

import math
import sys
from pathlib import Path

from agentrl.health.detectors import LISTED

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "health"))

from faults.streams import until
from onset.labels import ONSET_STREAMS
from onset_streams import Heard

_KNOWN = {entry.partition(":")[2] for entry in LISTED}


def test_labels_name_detectors_and_steps_inside_the_run() -> None:
    sick = [stream for stream in ONSET_STREAMS if stream.fault]
    assert len(sick) >= 60
    assert len(ONSET_STREAMS) - len(sick) >= 34
    assert len({stream.name for stream in ONSET_STREAMS}) == len(ONSET_STREAMS)
    for stream in ONSET_STREAMS:
        times = stream.times
        assert stream.expected <= _KNOWN, stream.name
        assert (stream.kind == "sound") == (not stream.fault), stream.name
        assert (stream.kind == "healed") == (times.over is not None), stream.name
        assert (stream.kind == "mixed") == bool(stream.second) == (times.second is not None)
        if stream.fault:
            last = max(times.onset, times.over or 0, times.second or 0)
            assert 1 <= times.onset <= last <= times.steps, stream.name
            assert min(times.over or last + 1, times.second or last + 1) > times.onset, stream.name


def test_a_sample_is_drawn_with_finite_curves_of_the_whole_run() -> None:
    for stream in ONSET_STREAMS[::15]:
        times, history = stream.draw(1, fresh=True)
        reward = history.metrics["reward"].steps
        assert reward == tuple(range(1, times.steps + 1)), stream.name
        for name, series in history.metrics.items():
            assert all(map(math.isfinite, series.values)), (stream.name, name)
        assert not history.not_finite or "not_finite" in stream.expected, stream.name
        assert abs(times.onset - stream.times.onset) <= 0.05 * times.steps + 1, stream.name
        early = until(history, 7)
        assert early.metrics["reward"].steps == reward[:7]
        assert max((facts.step for facts in early.rollouts), default=0) <= 7
        heard = Heard(stream=stream, times=times, first="", dated={stream.fault: times.onset + 3})
        assert heard.error == 3
