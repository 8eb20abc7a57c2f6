"""Two sets of rollouts that share no task, and numbers that say the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.task_labels import write_task_labels
from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.compare.pairs import question
from agentrl.inspect.pages.compare.words import behaviour
from agentrl.inspect.pages.task import task_answer
from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.types import Role, Task, Termination
from agentrl.types.explanation import Explanation
from tests.inspect.synthetic import make_rollout, write_metrics, write_step


def once_each(run: Path) -> RunReader:
    """Two steps of training, each with two tasks of its own of both families."""
    for step in (1, 2):
        rows = [
            make_rollout(
                f"{step}-{family}/{n}", [("assistant", f"{family} {n}")],
                group_id=f"{step}{family}", task_id=f"{step}-{family}", reward=reward, score=reward,
                reward_parts={"tests": reward, "style": 0.25},
            )
            for family, base in (("sum", 0.0), ("sort", 0.5))
            for n, reward in enumerate((base, base + 0.5 * (step - 1)))
        ]  # fmt: skip
        write_step(run, rows, step)
    tasks = [
        Task(id=f"{step}-{family}", prompt="", metadata={"family": family})
        for step in (1, 2)
        for family in ("sum", "sort")
    ]
    write_task_labels(RunPaths(run).task_labels_file, {"train": tasks})
    return RunReader(FoundRun(id="r", path=run))


def test_steps_without_a_common_task_are_compared_by_labels(tmp_path: Path) -> None:
    reader = once_each(tmp_path)
    first, second = (Side(reader=reader, kind="train", steps=(n, n)) for n in (1, 2))
    answer = compare_answer(first, second)
    assert answer["common_tasks"] == 0
    assert answer["numbers"][0]["paired"] is None
    once = tasks_answer(reader, TaskQuestion())["once"]
    assert once == "Each task of training was tried in one step."
    family = answer["by_label"]["family"]
    assert [(one["value"], one["before"], one["after"]) for one in family] == [
        ("sort", 0.5, 0.75), ("sum", 0.0, 0.25),
    ]  # fmt: skip


def test_a_number_that_is_the_score_is_shown_once(tmp_path: Path) -> None:
    reader = once_each(tmp_path / "same")
    sides = [Side(reader=reader, kind="train", steps=(n, n)) for n in (1, 2)]
    shown = {one["title"]: one["same_as"] for one in compare_answer(*sides)["numbers"]}
    assert shown["reward = tests = score"] is None
    assert (shown["reward"], shown["tests"], shown["style"]) == ("score", "score", None)
    assert {"calls not parsed", "calls broken by a tool error"} <= shown.keys()
    other = make_rollout("x/0", [("assistant", "x")], task_id="x", reward=0.5, score=1.0)
    write_step(tmp_path / "apart", [other])
    apart = Side(reader=RunReader(FoundRun(id="a", path=tmp_path / "apart")), kind="train")
    titles = {one["title"]: one["same_as"] for one in compare_answer(sides[0], apart)["numbers"]}
    assert (titles["score"], titles["reward"]) == (None, None)


def test_two_runs_are_compared_by_a_kind_that_both_have_after_training(tmp_path: Path) -> None:
    for run, evaluated in (("a", (0, 5)), ("b", (0,))):
        for step in evaluated:
            row = make_rollout(f"{step}/0", [("assistant", "x")], task_id="t", reward=0.0)
            write_step(tmp_path / run, [row], step, "eval/held_out")
        failed = run == "a"
        turns: list[tuple[Role, str]] = [("assistant", "x")]
        row = make_rollout(
            "1/0", [*turns, ("tool", "an error")] if failed else turns, task_id="t",
            score=float(not failed),
            termination=Termination.MAX_TOKENS if failed else Termination.ENV_DONE,
        )  # fmt: skip
        write_step(tmp_path / run, [row], 1)
    sides = [Side(reader=RunReader(FoundRun(id=run, path=tmp_path / run))) for run in "ab"]
    for run, rate in (("a", 1e-5), ("b", 2e-5)):
        config = f"train:\n  steps: 5\n  learning_rate: {rate}\n"
        RunPaths(tmp_path / run).config_file.write_text(config)
    answer = compare_answer(*sides)
    assert answer["config"] == [{"key": "train.learning_rate", "a": "1e-05", "b": "2e-05"}]
    assert [(one["kind"], one["steps"]) for one in answer["sides"]] == [("train", (1, 1))] * 2
    [solved] = answer["solved"]
    assert (solved["why"], solved["said"]) == ("ended by max tokens", "")
    numbers = [
        {"name": name, "group": "tools", "a": {"mean": a}, "b": {"mean": b},
         "paired": {"low": low, "high": low + 1}}
        for name, a, b, low in (("tool_calls", 2.0, 3.0, -0.5), ("parse_errors", 0.5, 0.05, -2.0))
    ]  # fmt: skip
    endings = [{"name": "sandbox_failed", "a": 24, "b": 2, "shares": (24 / 90, 2 / 90)},
               {"name": "max_turns", "a": 30, "b": 2, "shares": (30 / 90, 2 / 90)}]  # fmt: skip
    told = behaviour(numbers, endings, [{"tasks": 90, "rollouts": 90}] * 2)
    assert told["behaviour"] == [
        "Rollouts without a score, sandbox failed: 24 of 90 -> 2 of 90 (26.7 % -> 2.22 %).",
        "Fewer calls that could not be parsed: 0.500 -> 0.0500 a rollout.",
    ]
    assert told["behaviour_open"] == ["More tool calls: 2 -> 3 a rollout."]
    assert (solved["a"]["termination"], solved["b"]["termination"]) == ("max_tokens", "env_done")


def test_what_graders_say_and_tasks_ask_is_compared(tmp_path: Path) -> None:
    """Fails if a comparison is silent about answers that raise, or texts lack their question."""
    for run, wrong in (("a", 6), ("b", 1)):
        rows = [
            replace(
                make_rollout(str(n), [("assistant", "an answer")], task_id=str(n),
                             score=float(n >= wrong), reward=float(n >= wrong)),
                prompt_text="<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nAdd 1 "
                "to n.<|im_end|>\n<|im_start|>assistant\n",
                explanation=Explanation(
                    reason="It raised TypeError: no." if n < wrong else "10 of 10 passed."
                ),
            )
            for n in range(8)
        ]  # fmt: skip
        write_step(tmp_path / run, rows)
    sides = [Side(reader=RunReader(FoundRun(id=run, path=tmp_path / run))) for run in "ab"]
    answer = compare_answer(*sides)
    [cause] = answer["causes"]
    assert cause["text"] == (
        "The answer raised an error: 6 of 8 -> 1 of 8 (75 % -> 12.5 %), +0.625 of +0.625."
    )
    assert (cause["pair"]["task_id"], cause["pair"]["why"]) == ("1", "the answer raised TypeError")
    assert answer["solved"][0]["question"] == "Add 1 to n."
    assert (answer["shared_tasks"], answer["solved_example"]) == (None, 0)
    shown = {side: answer["solved"][0][side] for side in "ab"}
    assert [(one["said"], one["turn"], one["turns"]) for one in shown.values()] == [
        ("It raised TypeError: no.", 1, 1), ("10 of 10 passed.", 1, 1),
    ]  # fmt: skip
    assert question("no marker of a template") == "no marker of a template"


def test_a_head_start_and_what_was_learned_add_up(tmp_path: Path) -> None:
    scores = {"a": ((0, 0, 1, 1), (1, 0, 1, 1)), "b": ((0, 0, 0, 1), (1, 1, 1, 1))}
    for run, by_step in scores.items():
        for step, own in zip((0, 5), by_step, strict=True):
            rows = [
                make_rollout(str(n), [("assistant", "x")], task_id=str(n), score=float(score))
                for n, score in enumerate(own)
            ]
            write_step(tmp_path / run, rows, step, "eval/held")
            write_metrics(tmp_path / run, {"step": step, "eval/held/score": sum(own) / 4})
    answer = compare_answer(
        *(Side(reader=RunReader(FoundRun(id=run, path=tmp_path / run))) for run in "ab")
    )
    start, since, *_ = answer["own_changes"]
    assert start.startswith("At the start, on 4 shared tasks: A 0.500, B 0.250, B - A = -0.250 [")
    assert since.startswith("Since then: A +0.250, B +0.750, B - A = +0.500 [")
    assert "B - A = +0.250 [" in answer["headline"]["text"]


def test_behaviour_is_that_of_the_tasks_that_both_tried(tmp_path: Path) -> None:
    """Fails if a run's own tasks, which may be harder, decide how it is said to behave."""
    for run, tasks, env in (("a", 8, "x:Harness"), ("b", 30, "x:Code")):
        rows = [
            make_rollout(str(n), [("assistant", "x" * (5 if n < 8 else 500))], task_id=str(n),
                         score=0.5, termination=Termination.ENV_DONE if n < 8
                         else Termination.MAX_TOKENS)
            for n in range(tasks)
        ]  # fmt: skip
        for step in (0, 5):
            write_step(tmp_path / run, rows, step, "eval/held")
            write_metrics(tmp_path / run, {"step": step, "eval/held/score": 0.25 + step / 10})
        RunPaths(tmp_path / run).config_file.write_text(
            f"model:\n  path: m\nenv:\n  target: {env}\n  args: {{agent: {run}}}\n"
        )
    answer = compare_answer(
        *(Side(reader=RunReader(FoundRun(id=run, path=tmp_path / run))) for run in "ab")
    )
    assert (answer["behaviour"], answer["behaviour_open"]) == ([], [])
    assert answer["shared_tasks"] == 8
    # One line says which is better, by how much, on what, and why that is not the last word.
    assert answer["headline"] == {
        "better": "",
        "verdict": "Too few tasks differ to say which is better",
        "text": "on the 8 shared tasks: A 0.500, B 0.500, B - A = 0; "
        "not a clean comparison (other form of the tasks).",
    }
    # Each against itself, with the interval of its own tasks.
    assert answer["own_changes"] == [
        "At the start, on 8 shared tasks: A 0.500, B 0.500, B - A = 0.",
        "Since then: A 0, B 0, B - A = 0.",
        "A (a) by itself: 0.250 -> 0.750, 0 over its 8 tasks (step 0 -> 5).",
        "B (b) by itself: 0.250 -> 0.750, 0 over its 30 tasks (step 0 -> 5).",
    ]
    [form] = answer["starts"]
    assert (form["what"], form["a"], form["b"]) == (
        "form of the tasks", "environment Harness with agent a", "environment Code with agent b"
    )  # fmt: skip
    assert answer["prompts"] is None
    assert answer["config"][0]["key"] == "env.target"


def test_rewards_of_other_sums_are_not_compared(tmp_path: Path) -> None:
    """Fails if a reward model's value and an environment's are subtracted as if they were one."""
    configs = {"a": "reward:\n  env_weight: 0.0\n  functions:\n    style: {path: 'x.py:f'}\n",
               "b": "reward:\n  env_weight: 1.0\n"}  # fmt: skip
    for run, config in configs.items():
        parts = {"env": 0.5, "style": 3.0} if run == "a" else {}
        row = make_rollout("1/0", [("assistant", "x")], task_id="t", score=0.5,
                           reward=3.0 if run == "a" else 0.5, reward_parts=parts)  # fmt: skip
        write_step(tmp_path / run, [row])
        RunPaths(tmp_path / run).config_file.write_text(config)
    sides = [Side(reader=RunReader(FoundRun(id=run, path=tmp_path / run))) for run in "ab"]
    answer = compare_answer(*sides)
    assert answer["rewards_differ"] == (
        "Reward is not comparable: A is paid by the reward function style, B by the "
        "environment's own score."
    )
    by_name = {one["name"]: one for one in answer["numbers"]}
    assert (by_name["reward"]["change"], by_name["reward"]["paired"]) == (None, None)
    assert (by_name["style"]["paid"], by_name["env"]["paid"]) == ([True, False], [False, True])
    # What an environment alone pays is its part, although it is not stored as one.
    assert by_name["env"]["b"]["mean"] == 0.5


def test_a_task_of_one_step_has_attempts_and_tasks_like_it(tmp_path: Path) -> None:
    reader = once_each(tmp_path)
    answer = task_answer(reader, "2-sum")
    attempts = answer["attempts"]["rollouts"]
    assert [(one["rollout_id"], one["reward"], one["text"]) for one in attempts] == [
        ("2-sum/1", 0.5, "sum 1"), ("2-sum/0", 0.0, "sum 0"),
    ]  # fmt: skip
    assert answer["alike"] == [
        {"label": "family", "value": "sum", "tasks": 2, "steps": [1, 2], "values": [0.0, 0.25]}
    ]
    row = make_rollout("3/0", [("assistant", "x")], group_id="3", task_id="2-sum")
    write_step(tmp_path, [row], 3)
    again = task_answer(reader, "2-sum")
    assert [one["rollout_id"] for one in again["attempts"]["rollouts"]] == ["3/0"]
    assert again["alike"] == answer["ends"] == []
    ends = [(one["step"], one["rollout_id"], one["score"], one["text"]) for one in again["ends"]]
    assert ends == [(2, "2-sum/1", 0.5, "sum 1"), (3, "3/0", 1.0, "x")]
