"""How fast the inspector answers on large runs, asked over HTTP as the page asks.

    python benchmarks/inspector.py                      # 10^4 rollouts
    python benchmarks/inspector.py --rollouts 100000    # files of 10^4 under ten names each
    python benchmarks/inspector.py --browser            # and how fast the page paints

Makes a run with `TrajectoryStore` and `TokenStore` (5 turns, about 3 kB of text and 800 response
tokens a rollout, 256 rollouts a step, an evaluation every ten steps, one row of 32k tokens), starts
`agentrl inspect` on it, and asks each question a few times. `cold` is the first answer of a server
that was started for it.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import machine, options

from agentrl.data import TrajectoryStore
from agentrl.data.store.token_store import TokenStore
from agentrl.types import (
    FinishReason,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    TrainedTokens,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

GROUPS, SIBLINGS = 32, 8
TURN_TOKENS, TOOL_TOKENS = 200, 100
LONG_TOKENS = 32_768
TEXT = (
    "the a of to and in is file test value error line return import class def self path run open "
    "close read write list map key error: expected got assert traceback module function argument"
)
WORDS = TEXT.split()
NEEDLE = "zanzibar"
"""In one turn of a thousand."""


def main() -> None:
    args = options(__doc__, rollouts=10_000, repeat=5, keep=Path, browser=False)
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = folder / f"rollouts-{args.rollouts}"
        if not run.exists():
            begun = time.perf_counter()
            make_run(run, args.rollouts)
            print(f"made {run} in {time.perf_counter() - begun:.0f} s", flush=True)
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        print(f"{args.rollouts} rollouts, {size / 2**20:.0f} MiB, {machine()}")
        measure(run, args.repeat)
        if args.browser:
            measure_browser(run, args.repeat)


def make_run(run: Path, rollouts: int) -> None:
    """A run directory of about so many rollouts."""
    run.mkdir(parents=True)
    steps = max(1, rollouts // (GROUPS * SIBLINGS))
    distinct = min(steps, 40)
    store, tokens = TrajectoryStore(run / "trajectories"), TokenStore(run / "tokens")
    draw = random.Random(0)
    for step in range(1, distinct + 1):
        groups = [group(draw, step, place) for place in range(GROUPS)]
        if step == 1:
            groups.append(long_group(draw))
        advantages = {r.rollout_id: draw.choice((-0.5, 0.0, 0.5)) for g in groups
                      for r in g.trajectories}  # fmt: skip
        store.write(step, "train", groups, advantages)
        trained = [trained_tokens(row, step) for g in groups for row in g.trajectories]
        tokens.write(step, 0, trained)
        if step % 10 == 0:
            store.write(step, "eval/held_out", groups[:16])
    for step in range(distinct + 1, steps + 1):
        shutil.copy(store.path(1 + step % distinct, "train"), store.path(step, "train"))
        shutil.copy(tokens.path(1 + step % distinct, 0), tokens.path(step, 0))
    write_metrics(run, steps, draw)
    (run / "config.yaml").write_text("env: {target: 'x:Y'}\ndataset: {source: x.jsonl}\n")
    (run / "result.json").write_text(json.dumps({"steps": steps, "reason": "all steps done"}))


def write_metrics(run: Path, steps: int, draw: random.Random) -> None:
    names = ["reward", "reward_std", "frac_reward_zero_std", "entropy", "kl", "train/grad_norm",
             "clip_ratio/region_mean", "completions/mean_length", "completions/clipped_ratio",
             "timing_s/rollout", "timing_s/train", "timing_s/sync", "timing_s/step"]  # fmt: skip
    names += [f"waste/{what}/{fate}" for what in ("tokens", "seconds")
              for fate in ("trained", "zero_advantage", "filtered", "truncated")]  # fmt: skip
    names += [f"other/{number}" for number in range(80)]
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(steps + 1):
            line = {"step": step, "time": 1.8e9 + 30 * step}
            line |= {name: round(draw.random(), 6) for name in names}
            if step % 10 == 0:
                line |= {"eval/held_out/score": 0.5, "eval/held_out/score_low": 0.4,
                         "eval/held_out/score_high": 0.6}  # fmt: skip
            file.write(json.dumps(line) + "\n")


def group(draw: random.Random, step: int, place: int) -> TrajectoryGroup:
    task = f"task-{(step * GROUPS + place) % 500}"
    name = f"step-{step}/{place:04d}-{task}"
    rows = tuple(rollout(draw, task, name, f"{name}/{n}", step, 3) for n in range(SIBLINGS))
    return TrajectoryGroup(group_id=name, task_id=task, trajectories=rows)


def long_group(draw: random.Random) -> TrajectoryGroup:
    turns = LONG_TOKENS // (TURN_TOKENS + TOOL_TOKENS)
    row = rollout(draw, "long", "step-1/long", "step-1/long/0", 1, turns)
    return TrajectoryGroup(group_id="step-1/long", task_id="long", trajectories=(row,))


def rollout(
    draw: random.Random, task: str, group_id: str, rollout_id: str, step: int, actions: int
) -> Trajectory:
    turns: list[Turn] = []
    mask: list[int] = []
    for number in range(2 * actions - 1):
        sampled = number % 2 == 0
        length = TURN_TOKENS if sampled else TOOL_TOKENS
        text = " ".join(draw.choices(WORDS, k=length // 2))
        if draw.random() < 0.001:
            text += " " + NEEDLE
        call = ToolCall(
            id=str(number), name="bash", arguments={"command": text[:60]}, raw=text[:80]
        )
        result = ToolResult(text=text, status=draw.choice((ToolStatus.OK, ToolStatus.ERROR)),
                            name="bash", duration_s=0.1)  # fmt: skip
        turns.append(
            Turn(role="assistant" if sampled else "tool", start=len(mask), end=len(mask) + length,
                 text=text, tool_calls=(call,) if sampled else (),
                 tool_results=() if sampled else (result,),
                 finish_reason=FinishReason.STOP if sampled else None, duration_s=1.0)
        )  # fmt: skip
        mask += [int(sampled)] * length
    noise = np.random.default_rng(draw.randrange(2**32))
    log_probs = (-noise.exponential(0.4, len(mask)).astype(np.float32)).tolist()
    return Trajectory(
        task_id=task, group_id=group_id, rollout_id=rollout_id,
        prompt_ids=tuple(noise.integers(0, 50_000, 300).tolist()),
        response_ids=tuple(noise.integers(0, 50_000, len(mask)).tolist()),
        response_mask=tuple(mask),
        rollout_log_probs=tuple(p if m else 0.0 for p, m in zip(log_probs, mask, strict=True)),
        policy_versions=tuple(step - 1 if m else -1 for m in mask),
        prompt_text=" ".join(draw.choices(WORDS, k=100)), turns=tuple(turns),
        reward=draw.choice((0.0, 1.0)), score=draw.choice((0.0, 1.0)),
        termination=draw.choice([Termination.ENV_DONE] * 2 + [Termination.MAX_TURNS]),
        duration_s=draw.random() * 30,
    )  # fmt: skip


def trained_tokens(row: Trajectory, step: int) -> TrainedTokens:
    sampled = np.asarray(row.rollout_log_probs, dtype=np.float32)
    mask = np.asarray(row.response_mask, dtype=bool)
    count = len(mask)
    noise = np.random.default_rng(step)
    numbers = {
        "old_log_probs": (sampled + 0.01 * noise.standard_normal(count)) * mask,
        "log_probs": (sampled + 0.02 * noise.standard_normal(count)) * mask,
        "entropy": noise.exponential(0.5, count) * mask,
        "advantages": 0.5 * mask,
        "correction": np.ones(count) * mask,
        "loss": 1e-5 * noise.standard_normal(count) * mask,
    }
    return TrainedTokens(
        group_id=row.group_id, rollout_id=row.rollout_id, row_index=0, updates=1,
        trained=mask.tolist(), clip=[0] * count,
        **{name: values.tolist() for name, values in numbers.items()},
    )  # fmt: skip


class Server:
    """`agentrl inspect` as a process, from its start until it says its address."""

    def __init__(self, run: Path) -> None:
        words = ["-c", "from agentrl.cli import main; main()", "inspect", str(run)]
        self.begun = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *words, "--no-browser"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        self.address = found[0]
        self.started_s = time.perf_counter() - self.begun

    def ask(self, name: str, **query: object) -> tuple[float, int, dict]:
        """Milliseconds, bytes, answer."""
        text = urllib.parse.urlencode(query)
        begun = time.perf_counter()
        with urllib.request.urlopen(f"{self.address}api/{name}?{text}") as answer:
            body = answer.read()
        return 1000 * (time.perf_counter() - begun), len(body), json.loads(body)

    def peak_mib(self) -> float:
        """Most memory it held so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(10)


@contextlib.contextmanager
def serving(run: Path) -> Iterator[Server]:
    server = Server(run)
    try:
        yield server
    finally:
        server.close()


def questions(run: Path, step: int) -> list[tuple[str, str, dict[str, object]]]:
    name = run.name
    group_id = f"step-1/0003-task-{(GROUPS + 3) % 500}"
    place: dict[str, object] = {"run": name, "kind": "train"}
    one = {**place, "step": 1}
    return [
        ("first screen", "run", {"run": name}),
        ("step (groups)", "step", {**place, "step": step}),
        ("group", "group", {**one, "group": group_id}),
        ("trajectory", "rollout", {**one, "rollout": f"{group_id}/2"}),
        ("tokens of a rollout", "tokens", {**one, "rollout": f"{group_id}/2", "row": 0}),
        ("tokens, 32k", "tokens", {**one, "rollout": "step-1/long/0", "row": 0}),
        ("find a rare word", "find", {"run": name, "q": NEEDLE}),
        ("find a common word", "find", {"run": name, "q": "Traceback"}),
        ("find tool errors", "find", {"run": name, "tool_status": "any_error"}),
        ("find by reward, cut off", "find", {"run": name, "reward_min": 1, "truncated": 1}),
        ("find by version lag", "find", {"run": name, "lag_min": 1}),
        ("find by gap", "find", {"run": name, "gap_min": 0.03}),
        ("SQL mean reward by step", "sql",
         {"run": name, "q": "select step, avg(reward) from trajectories group by step"}),
        ("tasks of training", "tasks", {"run": name, "kind": "train"}),
        ("one task", "task", {"run": name, "task": "task-35"}),
        ("compare thirds of training", "compare", place),
        ("is the reward hacked", "hacking", {"run": name}),
        ("near-identical answers", "clusters", {"run": name}),
        ("pulse", "pulse", {"run": name}),
    ]  # fmt: skip


def measure(run: Path, repeat: int) -> None:
    step = max(TrajectoryStore(run / "trajectories").steps())
    print(f"\n{'question':28s} {'cold ms':>9s} {'warm ms':>9s} {'KiB':>8s}")
    peak = 0.0
    for title, name, query in questions(run, step):
        with serving(run) as server:
            cold, size, _ = server.ask(name, **query)
            warm = statistics.median(server.ask(name, **query)[0] for _ in range(repeat))
            peak = max(peak, server.peak_mib())
            started = server.started_s
        print(f"{title:28s} {cold:9.0f} {warm:9.0f} {size / 1024:8.0f}", flush=True)
    print(f"server started in {1000 * started:.0f} ms, held at most {peak:.0f} MiB; this process "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")  # fmt: skip


def measure_browser(run: Path, repeat: int) -> None:
    """From going to an address until the frame after its view was put in, in headless Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    with serving(run) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print()
        for title, view, query in views(run):
            times = []
            for _ in range(repeat):
                page = browser.new_page()
                begun = time.perf_counter()
                page.goto(f"{server.address}#/{view}?{urllib.parse.urlencode(query)}")
                page.wait_for_selector("#main[data-ready]", state="attached")
                page.evaluate(
                    "() => new Promise(done => requestAnimationFrame(() =>"
                    " requestAnimationFrame(done)))"
                )
                times.append(1000 * (time.perf_counter() - begun))
                page.close()
            median = statistics.median(times)
            print(f"{title:28s} painted in {times[0]:6.0f} ms first, {median:6.0f} ms median")
        browser.close()


def views(run: Path) -> list[tuple[str, str, dict[str, object]]]:
    """Title, view and parameters of the pages that are painted."""
    step = max(TrajectoryStore(run / "trajectories").steps())
    asked = {title: (name, query) for title, name, query in questions(run, step)}
    titles = "first screen|step (groups)|group|trajectory|tokens, 32k|tasks of training|one task"
    titles += "|compare thirds of training|is the reward hacked"
    return [(title, *asked[title]) for title in titles.split("|")]


if __name__ == "__main__":
    main()
