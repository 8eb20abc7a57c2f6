"""A fit against `train.max_minutes`: the real session around a model that only takes time."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from agentrl.config.load import FIT_FILE
from agentrl.fit.progress import FitProgress
from agentrl.fit.session import FitSession
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics import MetricBag
from agentrl.metrics.run_clock import RunClock


async def test_a_fit_keeps_time_for_its_last_evaluation(tmp_path: Path) -> None:
    """Fails if a fit trains to the end of its time and only then evaluates and saves."""
    now, logged = [0.0], dict[int, dict[str, float]]()

    def take(seconds: float, *values: Any) -> MetricBag:
        now[0] += seconds
        bag = MetricBag()
        bag.sum("sft/loss", 1.0)
        return bag

    data = {"data": {"source": "x.jsonl"}, "checkpoint": {"every_steps": 4}}
    config = FIT_FILE.parse(
        {**data, "train": {"steps": 99, "max_minutes": 4}, "eval": {"shown": 0}}, where="test"
    )
    fitter = SimpleNamespace(step=lambda *_, **__: take(6), evaluate=lambda *_: take(60), version=0)
    update = SimpleNamespace(trained=SimpleNamespace(global_sequences=1), measured=None)

    def write(held: object, folder: Path) -> None:
        take(12)
        (folder / "model.json").write_text("{}")

    session = FitSession(
        config=config,
        model=cast(Any, SimpleNamespace(fitter=fitter, hold=lambda *, alone: None, write=write)),
        crew=cast(Any, SimpleNamespace(order=lambda *_, **__: None)),
        updates=cast(Any, SimpleNamespace(step=lambda number: update, steps_per_epoch=9)),
        evals={"held": cast(Any, update)},
        shown=cast(Any, SimpleNamespace(write=lambda step, answers: None)),
        directory=cast(
            Any,
            SimpleNamespace(
                path=tmp_path,
                checkpoints=tmp_path / "checkpoints",
                write_result=lambda scores: None,
            ),
        ),
        metrics=cast(
            Any,
            SimpleNamespace(log=lambda step, line: logged.setdefault(step, {}).update(line)),
        ),
        progress=cast(Any, type("Quiet", (FitProgress,), {})()),
        scorer=None,
        done=0,
        clock=RunClock(4, elapsed_s=0.0, now=lambda: now[0]),
        cursor={},
        base=tmp_path,
        began=time.monotonic(),
    )
    result = await session.run(StopSwitch())
    # Steps of 6 s, three checkpoints of 12 s, and an evaluation of a minute before and after.
    assert (result.steps, now[0]) == (12, 60 + 12 * 6 + 3 * 12 + 60)
    saved = {step for step, line in logged.items() if "timing_s/checkpoint" in line}
    assert saved == {4, 8, 12}  # at the step that made it, and at no other
