"""`kill -9` of gateway, trainer, agent and sandbox at random moments, and what is left of each.

    python benchmarks/serving/kills.py                              # 20 kills of each, some minutes
    python benchmarks/serving/kills.py trainer --kills 2 --seed 1   # one target, a smoke run

Runs of a tiny random model (`tests/runtime/tiny_project.py`), and real processes:

    gateway    the process of `agentrl gateway serve`, which trains on four agents outside
    trainer    the process of `agentrl train`, whose agents are programs in sandboxes: its gateway
               lives in it
    agent      every other one an agent outside, and a program inside its sandbox
    sandbox    every other one the supervisor of a sandbox, and the program that made its walls

After a kill of the first two, every process below the killed one must end, and nothing may listen
at the port. What lies in the temporary folder, and cgroups, are counted as well: the next start is
to remove them. Every stored file must be readable, and none may be written a second time by
`--resume`. After five kills the run is resumed to its end. The other two are killed five times in a
run that goes on.

Every run must then have ended with status 0 and without leftovers; each task must be in as many
steps as the next, each rollout be stored once and each step be logged once; and the weights must
be, bit by bit, those of one pass over the stored rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing.util
import os
import platform
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentrl_sandboxes.host.identity import started
from agentrl_sandboxes.leftovers import collect

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from agentrl.data import TrajectoryStore
from agentrl.machine.processes.tree import children_of, descendants_of
from agentrl.metrics.sinks import read_metrics
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.tiny_project import Agentrl, write_model, write_project

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
STEPS = 12
"""Of a run, three passes over its tasks."""
IN_A_RUN = 5
"""Kills in one run."""
AGENTS = 4
END_S = 15.0
"""Seconds within which what is below a killed process must end."""
LIFE_S = 12.0
"""A process is killed within so many seconds of its start; the first step takes some 3 of them."""

PROGRAM = '''
from agentrl_envs.harness.agents import HarnessAgent

SOURCE = """
import json, os, time, urllib.request
said = [{"role": "user", "content": "Vowels!"}]
for turn in range(2):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": said}).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["KEY"]})
    turn = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    said += [turn, {"role": "user", "content": "more"}]
    time.sleep(0.1)
"""
MINE = HarnessAgent(
    name="mine",
    wire="chat",
    command="exec python3 {home}/killed_agent.py",
    environment={"OPENAI_BASE_URL": "{base_url}/v1", "KEY": "{key}"},
    files={"killed_agent.py": SOURCE},
)
'''
OUTSIDE = """
import sys, time

sys.path.insert(0, FOLDER)
import outside_agent


def play(session):
    ask = {"model": "policy", "messages": session["task"]["messages"]}
    turn = outside_agent.post(session["base_url"] + "/chat/completions", ask)
    text = turn["choices"][0]["message"]["content"] or ""
    time.sleep(0.05)
    return sum(c in "aeiouAEIOU" for c in text) / max(1, len(text))


outside_agent.play = play
outside_agent.main(sys.argv[1])
"""


@dataclass(slots=True, kw_only=True)
class Killed:
    """One kill, and what it left."""

    target: str
    """The process that was killed, in words."""
    after_s: float
    """Seconds since its run was started, or since the kill before it."""
    steps: int = 0
    """Steps that were stored by then."""
    ended_s: float = 0.0
    """Seconds until every process below it had ended."""
    processes: int = 0
    """Processes below it that had not ended after `END_S`."""
    listening: bool = False
    """Whether something listened at its port then."""
    until_next: dict[str, int] = field(default_factory=dict[str, int])
    """Files, folders and cgroups that the next start is to remove, by kind."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """One run that was killed several times and has ended."""

    kills: list[Killed]
    """In order."""
    faults: list[str]
    """Everything that is not as it should be."""


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def listens(port: int) -> bool:
    """Return true if a connection to the port is accepted."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def words_of(pid: int) -> bytes:
    """The command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def left_behind(folder: Path, known: set[Path], owners: set[int]) -> dict[str, int]:
    """Entries of the temporary folder that are new, and cgroups of dead owners, by kind."""
    new = {*folder.iterdir()} - known
    found = Counter(re.sub(r"[0-9a-z]{8,}|[0-9]+", "*", path.name) for path in new)
    for item in asyncio.run(collect(dry_run=True, folder=folder)):
        if item.kind != "folder" and any(f"-{pid}-" in item.name for pid in owners):
            found[item.kind] += 1
    return dict(found)


class Killing:
    """One run with what it needs; made anew for every `IN_A_RUN` kills."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.port = 0
        self.kills: list[Killed] = []
        self.faults: list[str] = []
        self.words: tuple[object, ...] = ()
        self.path = folder
        self._written: dict[Path, int] = {}
        self._starts = 0
        self._pids: set[int] = set()
        self._temporary = Path(tempfile.gettempdir())
        self._known = set(self._temporary.iterdir())
        self._agents: list[subprocess.Popen[bytes]] = []

    def outside(self) -> None:
        """Train on agents outside."""
        self.port = free_port()
        (self.folder / "agent.py").write_text(OUTSIDE.replace("FOLDER", repr(str(EXAMPLES))))
        self.path = self._project(rollout__timeout_s=3.0)
        self.words = ("gateway", "serve", self.path, "--port", self.port)

    def programs(self) -> None:
        """Train on programs in sandboxes."""
        grade = f"{self.folder}/vowels.py:Vowels"
        args = {"agent": f"{self.folder}/mine.py:MINE", "grade": grade}
        (self.folder / "mine.py").write_text(PROGRAM)
        self.path = self._project(
            env={"target": "agentrl_envs.harness:HarnessTask", "args": args},
            sandbox={"backend": "auto"},
        )
        self.words = ("train", self.path)

    def _project(self, **changes: Any) -> Path:
        return write_project(
            self.folder, train__steps=STEPS, eval__datasets={}, checkpoint__every_steps=1,
            rollout__max_assistant_turns=3, **changes,
        )  # fmt: skip

    @property
    def run(self) -> Path:
        """The directory of the run."""
        return self.folder / "runs" / "tiny"

    @property
    def ended(self) -> bool:
        """True if the run has taken all its steps."""
        return (self.run / "result.json").exists()

    @contextlib.contextmanager
    def running(self) -> Iterator[Agentrl]:
        """A process of the run, and its agents."""
        self._starts += 1
        words = self.words if self._starts == 1 else (*self.words, "--resume")
        process = Agentrl(self.folder / f"log{self._starts}", *words)
        self._pids.add(process.pid)
        for _ in range(AGENTS if self.port else 0):
            self.start_agent()
        try:
            yield process
        finally:
            with contextlib.suppress(ValueError):  # it was waited for
                process.send(signal.SIGKILL)
            for agent in self._agents:
                agent.kill()
                agent.wait()
            self._agents.clear()

    def start_agent(self) -> None:
        """Start one more agent outside."""
        words = [sys.executable, str(self.folder / "agent.py"), f"http://127.0.0.1:{self.port}"]
        agent = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._agents.append(agent)

    def kill_process(self) -> None:
        """Start the run, kill its process, and look at what is left."""
        with self.running() as process:
            after_s = self.rng.uniform(0.0, LIFE_S)
            time.sleep(after_s)
            pid = process.pid
            if not started(pid):
                self._wait(process)
                return  # it had ended before
            killed = self._kill(str(self.words[0]), pid, after_s, process.wait)
            killed.listening = bool(self.port) and listens(self.port)
            killed.until_next = left_behind(self._temporary, self._known, self._pids)
        self._look_at_files()

    def kill_below(self, find: Callable[[int], list[int]], count: int, target: str) -> None:
        """Kill other processes of the run while it goes on, and let it end."""
        with self.running() as process:
            process.wait_for("step 1/")
            last = time.monotonic()
            for _ in range(count):
                after_s = self.rng.uniform(0.0, 1.0)
                time.sleep(after_s)
                while started(process.pid):
                    found = find(process.pid)
                    if found:
                        with contextlib.suppress(ProcessLookupError):
                            after_s = time.monotonic() - last
                            self._kill(target, self.rng.choice(found), after_s)
                            last = time.monotonic()
                            break
                    time.sleep(0.002)
                for agent in [one for one in self._agents if one.poll() is not None]:
                    self._agents.remove(agent)
                    self.start_agent()
            self._wait(process)

    def _kill(
        self, target: str, pid: int, after_s: float, wait: Callable[[], object] = lambda: None
    ) -> Killed:
        """Kill a process, and wait until everything below it has ended."""
        steps = self._stored()
        os.kill(pid, signal.SIGSTOP)  # so that the list is whole
        alive = {one: started(one) for one in (pid, *descendants_of(pid))}
        os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        wait()
        while alive and time.monotonic() < at + END_S:
            alive = {one: begun for one, begun in alive.items() if begun and started(one) == begun}
            time.sleep(0.01)
        self.faults += [f"outlived its {target}: {words_of(one)!r}" for one in alive]
        ended_s = time.monotonic() - at
        killed = Killed(
            target=target, after_s=after_s, steps=steps, ended_s=ended_s, processes=len(alive)
        )
        self.kills.append(killed)
        return killed

    def _stored(self) -> int:
        return len(TrajectoryStore(self.run / "trajectories").steps("train"))

    def outside_agents(self, run: int) -> list[int]:
        """Agents that work for the run."""
        return [agent.pid for agent in self._agents if agent.poll() is None]

    def finish(self) -> Verdict:
        """Run it to its end, unless it is there, and check everything."""
        if not self.ended:
            with self.running() as process:
                self._wait(process)
        self._look_at_files()
        left = left_behind(self._temporary, self._known, self._pids)
        if left:
            self.faults.append(f"left after the end: {left}")
        self._check_once()
        return Verdict(kills=self.kills, faults=self.faults)

    def _wait(self, process: Agentrl) -> None:
        try:
            status = process.wait(180)
        except AssertionError as error:
            self.faults.append(str(error)[-2000:])
            return
        text = (self.folder / f"log{self._starts}").read_text()
        if status or "Traceback" in text:
            self.faults.append(f"ended with {status}: {text[-2000:]}")

    def _look_at_files(self) -> None:
        """Stored files can be read, and none is written twice."""
        store = TrajectoryStore(self.run / "trajectories")
        for file in sorted((self.run / "trajectories").glob("train/*.parquet")):
            at = file.stat().st_mtime_ns
            if self._written.setdefault(file, at) != at:
                self.faults.append(f"{file.name} was written twice")
        try:
            rows = list(store.read("train"))
        except Exception as error:  # whatever a reader may meet in half a file
            self.faults.append(f"the store cannot be read: {error!r}")
        else:
            if len(rows) % 12:
                self.faults.append(f"{len(rows)} rollouts are stored, which are no whole steps")

    def _check_once(self) -> None:
        tasks = stored_tasks(self.run)
        if list(tasks) != list(range(1, STEPS + 1)):
            self.faults.append(f"stored steps are {list(tasks)}")
        times = Counter(Counter(task for step in tasks.values() for task in step).values())
        if set(times) != {STEPS * 3 // 12}:
            self.faults.append(f"tasks by how often they were trained: {dict(times)}")
        rows = [one.trajectory for one in TrajectoryStore(self.run / "trajectories").read("train")]
        if len({row.rollout_id for row in rows}) != len(rows):
            self.faults.append("a rollout is stored twice")
        lines = [line["step"] for line in read_metrics(self.run / "metrics.jsonl")
                 if "train/loss" in line]  # fmt: skip
        if lines != list(range(1, STEPS + 1)):
            self.faults.append(f"logged steps are {lines}")
        if half := [*self.run.rglob(".making-*"), *self.run.glob("*live.json*")]:
            self.faults.append(f"left in the run: {[path.name for path in half]}")
        try:
            assert_weights_are_one_pass_over_the_store(self.path, self.run)
        except AssertionError as error:
            self.faults.append(f"the weights are not those of one pass: {str(error)[:300]}")


def programs_of(run: int) -> list[int]:
    """Agent programs inside the sandboxes of a run."""
    words = ((pid, words_of(pid)) for pid in descendants_of(run))
    return [pid for pid, said in words if said.startswith(b"python3") and b"killed_agent" in said]


def supervisors_of(run: int) -> list[int]:
    """Supervisors of the sandboxes of a run."""
    return [pid for pid in descendants_of(run) if b"\0-I\0-S\0" in words_of(pid)]


def walls_of(run: int) -> list[int]:
    """Programs that have made the walls of sandboxes; their parent is the run."""
    return [pid for pid in children_of(run) if supervisors_of(pid)]


def kill_all(target: str, kills: int, seed: int, folder: Path, model: Path) -> list[Verdict]:
    """As many kills as asked for, in as many runs as they take."""
    rng = random.Random(f"{target} {seed}")
    verdicts: list[Verdict] = []
    done = 0
    while done < kills:
        place = folder / f"{target}-{len(verdicts)}"
        shutil.copytree(model, place / "model")
        one = Killing(place, rng)
        count = min(IN_A_RUN, kills - done)
        second = len(verdicts) % 2 == 1
        if target == "gateway" or (target == "agent" and not second):
            one.outside()
        else:
            one.programs()
        if target in ("gateway", "trainer"):
            for _ in range(3 * IN_A_RUN):
                if len(one.kills) < count and not one.ended:
                    one.kill_process()
        elif target == "agent":
            find = programs_of if second else one.outside_agents
            one.kill_below(find, count, "program in a sandbox" if second else "agent outside")
        else:
            find = walls_of if second else supervisors_of
            one.kill_below(find, count, "walls" if second else "supervisor")
        verdicts.append(one.finish())
        done += len(one.kills)
        state = "; ".join(one.faults) or "no fault"
        sys.stderr.write(f"{target}: {done} of {kills} kills, {state}\n")
    return verdicts


def table(found: dict[str, list[Verdict]]) -> Sequence[str]:
    """The lines of the result."""
    lines = [
        "| killed | kills | runs | outlived it | s until all below it had ended, median and most "
        "| waits for the next start | faults |",
        "|--|--|--|--|--|--|--|",
    ]
    for target, verdicts in found.items():
        kills = [kill for verdict in verdicts for kill in verdict.kills]
        waits: Counter[str] = sum((Counter(kill.until_next) for kill in kills), Counter())
        ends = [kill.ended_s for kill in kills]
        alive = sum(kill.processes + kill.listening for kill in kills)
        faults = sum(len(verdict.faults) for verdict in verdicts)
        waiting = ", ".join(f"{number} {kind}" for kind, number in waits.items())
        lines.append(
            f"| {target} | {len(kills)} | {len(verdicts)} | {alive} "
            f"| {statistics.median(ends):.2f}, {max(ends):.2f} | {waiting or 'nothing'} "
            f"| {faults or 'none'} |"
        )
    return lines


def main() -> None:
    targets = ("gateway", "trainer", "agent", "sandbox")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", choices=[[], *targets], help="all by default")
    parser.add_argument("--kills", type=int, default=20, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the result as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        temporary = folder / "tmp"
        temporary.mkdir()
        # Of every process that is started from here, so that what they leave is found.
        multiprocessing.util.get_temp_dir()  # of the server that processes are forked from
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        model = write_model(folder / "model")
        found = {
            target: kill_all(target, options.kills, options.seed, folder, model)
            for target in options.targets or targets
        }
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python "
          f"{platform.python_version()}, seed {options.seed}\n")  # fmt: skip
    print("\n".join(table(found)))
    if options.out is not None:
        whole = {target: [asdict(one) for one in verdicts] for target, verdicts in found.items()}
        options.out.write_text(json.dumps(whole, indent=1) + "\n")
    faults = [fault for verdicts in found.values() for one in verdicts for fault in one.faults]
    print(*faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
