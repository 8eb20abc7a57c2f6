from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.text import Text
from textual.app import App
from textual.pilot import Pilot

from agentrl.data import TrajectoryStore
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import find_runs
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.stored_rows import StoredRows
from agentrl.inspect.terminal.app import TerminalApp
from agentrl.inspect.terminal.rollout_text import wrapped
from agentrl.inspect.terminal.text import sparkline
from agentrl.inspect.terminal.view import TableView
from agentrl.types import Turn
from tests.data.records import group, trajectory
from tests.inspect.hacked_runs import write_hacked_run

pytestmark = pytest.mark.slow

SIZE = (150, 40)
FORBIDDEN = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u200b"}
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]b[/bold] [@click=app.quit]x[/] \u202e\u200b\r\x00\ud800"


def readers(*roots: Path) -> list[RunReader]:
    return [RunReader(run) for run in find_runs(roots)]


def screen(app: TerminalApp) -> str:
    strips: Sequence = app.screen._compositor.render_strips()
    text = "\n".join("".join(segment.text for segment in strip) for strip in strips)
    assert not (set(text) - {"\n"}) & FORBIDDEN
    return text


async def until(pilot: Pilot, *parts: str) -> str:
    """The screen as soon as it shows all parts."""
    assert isinstance(pilot.app, TerminalApp)
    deadline = time.monotonic() + 120
    while True:
        await pilot.pause()
        text = screen(pilot.app)
        if all(part in text for part in parts):
            return text
        assert time.monotonic() < deadline, f"no {parts} in\n{text}"
        await pilot.pause(0.05)


async def press(pilot: Pilot, *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def into_a_rollout(pilot: Pilot, step: str) -> None:
    """From the steps of a run, by the first line of each screen."""
    await press(pilot, "enter")
    await until(pilot, step, "1 groups")
    await press(pilot, "enter")
    await until(pilot, "first words")
    await until(pilot, "all did the same")
    await press(pilot, "enter")


async def test_every_view_of_a_real_run_and_back(recorded_run: Path) -> None:
    app = TerminalApp(readers(recorded_run))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "recorded  finished", "eval/held", "env_done")
        await press(pilot, "d")
        await until(pilot, "dashboard", "Reward", "Entropy", "healthy", "Seconds of the last step")
        await press(pilot, "escape")
        await until(pilot, "ended by", "kind")
        await press(pilot, "t")
        await until(pilot, "tasks of eval/held  step 0 against step 4, by gain", "by task;")
        await press(pilot, "s")
        await until(pilot, "step 0 against step 4, by loss", "held-0")
        await press(pilot, "enter")
        await until(pilot, "eval/held step 4", "first words")
        await press(pilot, "escape", "escape")
        await until(pilot, "ended by", "kind")
        await press(pilot, "enter")
        await until(pilot, "train step 4  4 groups")
        await press(pilot, "left_square_bracket")
        await until(pilot, "train step 3  4 groups")
        await press(pilot, "enter")
        await until(pilot, "train step 3", "advantage", "first words")
        await press(pilot, "enter")
        text = await until(pilot, "prompt", "assistant turn 1 of", "call python ok", "result")
        assert "tokens sampled" in text
        await press(pilot, "t")
        text = await until(pilot, "coloured by why", "sampler", "trainer", "entropy", "why")
        for overlay in ("surprise", "gap", "entropy", "advantage", "ratio", "loss", "why"):
            await press(pilot, "o")
            await until(pilot, f"coloured by {overlay}")
        for _ in range(4):
            await press(pilot, "escape")
        await until(pilot, "recorded  finished")
        # Nothing is above the first screen.
        await press(pilot, "escape")
        await until(pilot, "recorded  finished")


async def test_a_hacked_reward_and_its_clusters_are_one_key_away(tmp_path: Path) -> None:
    app = TerminalApp(readers(write_hacked_run(tmp_path / "hacked")))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "train", "env_done")
        await press(pilot, "x")
        await until(pilot, "Probably: The reward rises and the environment's own score falls",
                    "1 clusters of near-identical answers", "I have checked twice")  # fmt: skip
        await press(pilot, "enter")
        await until(pilot, "assistant turn 1 of", "<script>alert('x')</script>")


async def test_columns_are_as_wide_as_their_texts_before_the_table_is_idle() -> None:
    """Fails where widths are left to the table, which measures its cells when it is idle."""

    class Listed(TableView):
        columns = ("id", "what it says")

        def read(self, width: int) -> list[tuple[int, list[str]]]:
            return []

        def show(self, answer: object) -> None:
            """Nothing by itself."""

    app = App[None]()
    async with app.run_test(size=SIZE) as pilot:
        listed = Listed()
        await app.push_screen(listed)
        await pilot.pause()
        listed.fill([(1, ["1", "word " * 10]), (2, ["twenty-two", "two\nlines"])])
        widths = [column.width for column in listed.table.columns.values()]
        assert widths == [len("twenty-two"), len("word " * 10)]
        listed.fill([(1, ["1", "short"])])
        assert [column.width for column in listed.table.columns.values()] == [2, 12]


async def test_siblings_and_other_steps_of_a_task_are_one_key_away(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    for step in (1, 2):
        rows = [trajectory(rollout_id=f"s{step}-{n}", group_id=f"{step}-t0") for n in range(2)]
        store.write(step, "train", [group(*rows)])
    app = TerminalApp(readers(tmp_path))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "env_done 2")
        await into_a_rollout(pilot, "train step 2")
        await until(pilot, "s2-0", "assistant turn 2 of 2", "done")
        await press(pilot, "n")
        await until(pilot, "s2-1")
        await press(pilot, "n")
        await until(pilot, "s2-1")
        await press(pilot, "left_square_bracket")
        await until(pilot, "train step 1  s1-0")
        await press(pilot, "right_square_bracket")
        await until(pilot, "train step 2  s2-0")


async def test_several_runs_are_listed_and_one_is_opened(
    recorded_run: Path, second_run: Path
) -> None:
    app = TerminalApp(readers(recorded_run, second_run))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "2 runs", "recorded", "second", "finished", "fail")
        await press(pilot, "j", "enter")
        await until(pilot, "second  finished")


async def test_finding_rollouts_and_opening_one(recorded_run: Path) -> None:
    app = TerminalApp(readers(recorded_run))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "recorded")
        await press(pilot, "slash")
        await press(pilot, *"is", "colon", *"odd", "enter")
        await until(pilot, "valid: is:truncated")
        await press(pilot, *["backspace"] * 6, *"RAN", "space", *"a", "enter")
        await until(pilot, " rollouts", "ran a")
        await press(pilot, "enter")
        await until(pilot, "assistant turn 1 of")
        await press(pilot, "escape", "escape")
        await until(pilot, "recorded  finished")


async def test_hostile_text_is_spelled_out_in_every_view(tmp_path: Path) -> None:
    # `screen` refuses control characters, so what is left to see is that the text is there.
    turns = (
        Turn(role="assistant", start=0, end=3, text=HOSTILE),
        Turn(role="tool", start=3, end=4, text=HOSTILE * 200_000),
    )
    row = trajectory(task_id=HOSTILE, rollout_id=HOSTILE, prompt_text=HOSTILE, turns=turns)
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    store.write(1, "train", [group(row)])
    store.write(1, f"eval/{HOSTILE}", [group(row)])
    app = TerminalApp(readers(tmp_path))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "env_done 1", "[bold]b[/bold]")
        for key, shown in (
            ("enter", "1 groups, 0 with zero"), ("enter", "all did the same"),
            ("enter", "assistant turn 1 of"), ("t", "coloured by why"),
        ):  # fmt: skip
            await press(pilot, key)
            await until(pilot, shown, "[bold]b[/bold] [@click=app.quit]x[/]")


async def test_what_a_run_writes_appears(run_copy: Path) -> None:
    app = TerminalApp(readers(run_copy))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "copy", "env_done")
        # The cursor stays on its step while newer ones come.
        await press(pilot, "down")
        store = TrajectoryStore(run_copy / "trajectories")
        store.write(77, "train", [group(trajectory())])
        await until(pilot, "77 ")
        await press(pilot, "enter")
        await until(pilot, "eval/held step 4")


async def test_a_torn_file_is_said_and_the_screen_stays(run_copy: Path) -> None:
    app = TerminalApp(readers(run_copy))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "copy", "env_done")
        path = TrajectoryStore(run_copy / "trajectories").path(4, "train")
        torn = path.with_name("copied")
        torn.write_bytes(path.read_bytes()[:200])
        torn.replace(path)
        await press(pilot, "enter")
        await until(pilot, "step 4", "can be read")
        await press(pilot, "escape")
        await until(pilot, "copy")


async def test_a_long_row_is_shown_without_delay(tmp_path: Path) -> None:
    count = 32_768
    row = trajectory(
        response_ids=tuple(range(count)),
        response_mask=(1,) * count,
        rollout_log_probs=(-0.5,) * count,
        policy_versions=(3,) * count,
        turns=(Turn(role="assistant", start=0, end=count, text="x " * count),),
    )
    TrajectoryStore(tmp_path / "run" / "trajectories").write(1, "train", [group(row)])
    app = TerminalApp(readers(tmp_path))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "env_done 1")
        await into_a_rollout(pilot, "train step 1")
        await until(pilot, "assistant turn 1 of")
        begun = time.process_time()
        await press(pilot, "t")
        await until(pilot, "32771 tokens")
        await press(pilot, "G")
        await until(pilot, " 32767 ")
        assert time.process_time() - begun < 5


class SlowRows(StoredRows):
    """Rows on a file system that hangs on some of the steps until it is told to go on."""

    def __init__(self, run: Path, slow: dict[int, threading.Event]) -> None:
        super().__init__(run)
        self.slow = slow

    def shelf(self, kind: str, step: int) -> Shelf:
        if step in self.slow:
            assert self.slow[step].wait(120)
        return super().shelf(kind, step)


async def test_keys_work_while_a_screen_is_read_and_the_newest_request_is_shown(
    tmp_path: Path,
) -> None:
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    for step in (1, 2, 3):
        store.write(step, "train", [group(trajectory())])
    slow = {step: threading.Event() for step in (2, 3)}
    (reader,) = readers(tmp_path)
    reader.rows = SlowRows(reader.path, slow)
    app = TerminalApp([reader])
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "no findings")
        await press(pilot, "enter")
        await until(pilot, "reading ...")
        await press(pilot, "escape")
        await until(pilot, "no findings")
        # Of a screen that was left nothing comes any more.
        slow.pop(3).set()
        await press(pilot, "enter")
        await until(pilot, "train step 3")
        await press(pilot, "left_square_bracket")
        await until(pilot, "train step 3", "reading ...")
        await press(pilot, "left_square_bracket")
        text = await until(pilot, "train step 1")
        assert "reading" not in text
        slow.pop(2).set()
        await pilot.pause(0.2)
        assert "train step 1" in screen(app)


def test_a_curve_becomes_bars() -> None:
    assert sparkline([0.0, 0.5, 1.0], 3) == "\u2581\u2584\u2588"
    assert sparkline([5.0, 5.0], 9) == "\u2581\u2581"
    assert sparkline([], 9) == ""
    assert len(sparkline([float(n) for n in range(1000)], 40)) == 40
    assert sparkline([0.0, float("inf")], 2) == "\u2581\u2581"


def test_lines_are_no_wider_than_the_pane() -> None:
    lines = list(wrapped(Text("a\t" + "word " * 50 + "\n\n" + "\u4f60" * 30), 20))
    assert all(line.cell_len <= 20 for line in lines)
    assert "".join(line.plain for line in lines).count("word") == 50
    assert "".join(line.plain for line in lines).count("\u4f60") == 30
