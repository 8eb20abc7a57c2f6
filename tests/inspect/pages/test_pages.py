"""What the inspector says of a run, against the files that the run wrote."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agentrl.data import TrajectoryStore
from agentrl.data.store.token_store import TokenStore
from agentrl.errors import RunError
from agentrl.health import Series
from agentrl.inspect.pages.find import find_answer
from agentrl.inspect.pages.find_line import Question
from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.overview import run_entry, run_overview
from agentrl.inspect.pages.rollout import diff_answer, rollout_answer
from agentrl.inspect.pages.scores import first_and_last
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.inspect.read.stored_rows import StoredRows
from agentrl.inspect.read.task_scores import task_scores
from agentrl.inspect.read.token_reasons import Facts, explain, prefix_spans
from agentrl.types import Termination, ToolStatus, TrainedTokens
from tests.inspect.synthetic import make_rollout, write_metrics, write_step


def open_run(path: Path) -> RunReader:
    return RunReader(FoundRun(id="run", path=path))


@pytest.fixture(scope="session")
def reader(recorded_run: Path) -> RunReader:
    return open_run(recorded_run)


def stored(run: Path, kind: str = "train", step: int | None = None):
    return list(TrajectoryStore(run / "trajectories").read(kind, step=step))


def test_the_first_screen_holds_what_the_run_logged(reader, recorded_run):
    overview = run_overview(reader)
    lines = [json.loads(line) for line in (recorded_run / "metrics.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["reward"] for line in lines if "reward" in line}
    assert dict(zip(*overview["metrics"]["reward"].values(), strict=True)) == logged
    scores = {line["step"]: line["eval/held/score"] for line in lines if "eval/held/score" in line}
    held = overview["evals"]["held"]
    assert dict(zip(held["steps"], held["score"], strict=True)) == scores
    assert all(low <= high for low, high in zip(held["low"], held["high"], strict=True))
    assert set(overview["timing"]) >= {"rollout", "train", "sync", "step"}
    assert "elapsed" not in overview["timing"]
    assert overview["config"]["algorithm.kl_coef"] == 0.01
    names = [band["metric"] for band in overview["dashboard"]]
    assert "eval/held/score" in names
    assert not any("*" in name for name in names)
    assert overview["notes"] == []
    # The very interval that the run printed when it ended.
    printed = json.loads((recorded_run / "result.json").read_text())["scores"]["held"]
    assert held["change"] == pytest.approx(printed["difference"], nan_ok=True)
    entry = run_entry(reader)
    assert (entry["steps"], entry["score"], entry["score_before"], entry["score_after"]) == (
        4, "held", scores[0], scores[4],
    )  # fmt: skip


def test_an_evaluation_of_training_tasks_is_not_called_held_out(tmp_path):
    """Fails if the page calls it the number that cannot be gamed."""
    config = """
dataset: {source: a.jsonl, split: train}
eval: {datasets: {own: {source: a.jsonl, split: train}, held: {source: b.jsonl}}}
"""
    run = tmp_path / "run"
    lines = [{"step": n, "eval/own/score": 0.5, "eval/held/score": 0.5} for n in (0, 4)]
    write_metrics(run, *lines)
    (run / "config.yaml").write_text(config)
    bands = {band["metric"]: band for band in run_overview(open_run(run))["dashboard"]}
    assert bands["eval/held/score"]["label"] == "Held-out score: held"
    assert "cannot be gamed" in bands["eval/held/score"]["what"]
    assert bands["eval/own/score"]["label"] == "Score on training tasks: own"
    assert "cannot be gamed" not in bands["eval/own/score"]["what"]


def test_only_what_can_be_trusted_is_in_the_score_of_a_task(tmp_path):
    """Fails if a lost rollout counts as 0, if an early row or another step is taken, or a reward
    where there is a score."""
    text = [("assistant", "ab")]
    rollouts = [
        make_rollout("a/0", text, task_id="a", reward=5.0, score=1.0),
        make_rollout("a/1", text, task_id="a", reward=5.0, score=1.0),
        make_rollout("a/1", text, task_id="a", reward=5.0, score=0.0, row_index=1),
        make_rollout("a/2", text, task_id="a", reward=0.0, score=0.0,
                     termination=Termination.SANDBOX_FAILED),
        make_rollout("b/0", text, group_id="h", task_id="b", reward=0.25, score=None),
    ]  # fmt: skip
    file = write_step(tmp_path / "run", rollouts, 2, "eval/held")
    store = tmp_path / "run" / "trajectories"
    assert task_scores(store, "eval/held", 2) == {"a": 0.5, "b": 0.25}
    assert task_scores(store, "eval/held", 3) == {}
    assert task_scores(store, "train", 2) == {}
    file.write_bytes(file.read_bytes()[:-9])
    assert task_scores(store, "eval/held", 2) == {}


def test_the_score_of_a_run_is_that_of_the_first_evaluation_its_config_names():
    """Fails if the scores of several data sets are averaged, or the first by name is taken."""
    curves = {
        f"eval/{name}/score": Series(steps=(0, 5), values=values)
        for name, values in (("a_train", (0.1, 0.9)), ("held/out", (0.2, 0.4)))
    }
    config = {"eval.datasets.held/out.source": "x", "eval.datasets.a_train.source": "y"}
    assert first_and_last(curves, config) == ("held/out", 0.2, 0.4)
    assert first_and_last(curves, {}) == ("a_train", 0.1, 0.9)
    once = {"eval/held/score": Series(steps=(0,), values=(0.5,))}
    assert first_and_last(once, {}) == ("held", 0.5, None)


def test_a_step_counts_every_stored_rollout_once(reader, recorded_run):
    for step in (1, 2, 3, 4):
        answer = step_answer(reader, "train", step)
        rows = stored(recorded_run, step=step)
        assert sum(group["n"] for group in answer["groups"]) == len(rows) == 16
        for group in answer["groups"]:
            members = [r.trajectory for r in rows if r.trajectory.group_id == group["group_id"]]
            rewards = [m.reward for m in members if m.reward is not None]
            assert group["reward_mean"] == pytest.approx(np.mean(rewards) if rewards else None)
            assert group["reward_std"] == pytest.approx(np.std(rewards) if rewards else None)
            assert group["tokens"] == sum(m.num_action_tokens for m in members)
            assert group["terminations"] == Counter(m.termination.value for m in members)
    everything = [g for step in (1, 2, 3, 4) for g in step_answer(reader, "train", step)["groups"]]
    assert {g["task_id"] for g in everything if g["zero_advantage"]} == {"train/0"}
    answer = step_answer(reader, "train", None)
    assert answer["step"] == 4
    assert answer["kinds"] == ["train", "eval/held"]
    assert step_answer(reader, "eval/held", 2)["steps"] == [0, 2, 4]


def test_siblings_part_where_their_tokens_first_differ(tmp_path):
    rows = [
        make_rollout("a", [("assistant", "same"), ("tool", "out"), ("assistant", "go left")]),
        make_rollout("b", [("assistant", "same"), ("tool", "out"), ("assistant", "go right")]),
        make_rollout("c", [("assistant", "same"), ("tool", "out"), ("assistant", "go lower")]),
    ]
    write_step(tmp_path, rows)
    write_step(tmp_path, [rows[0], make_rollout("b", [("assistant", "same")])], step=2)
    write_step(tmp_path, [make_rollout(n, [("assistant", "all one")]) for n in "ab"], step=3)
    reader = open_run(tmp_path)
    answer = group_answer(reader, "train", 1, "g")
    assert answer["divergence"] == {
        "turn": 2, "name": "turn 2", "char": 3, "token": 10,
    }  # fmt: skip
    assert answer["other_steps"] == [{"step": 2, "group_id": "g"}, {"step": 3, "group_id": "g"}]
    # One that ends parts from one that goes on, where that one's next turn begins.
    assert group_answer(reader, "train", 2, "g")["divergence"] == {
        "turn": 1, "name": "after turn 1", "char": 0, "token": 4,
    }  # fmt: skip
    alike = group_answer(reader, "train", 3, "g")
    assert alike["divergence"] is None
    assert [one["same_as"] for one in alike["siblings"]] == [None, "a"]
    [outcome] = alike["outcomes"]
    assert (outcome["text"], outcome["reward"], outcome["rollouts"]) == ("all one", 1.0, ["a", "b"])
    assert [one["text"] for one in answer["outcomes"]] == ["go left", "go right", "go lower"]


def test_a_group_shows_the_last_patch_that_a_tool_handed_over(tmp_path):
    row = make_rollout("a", [("assistant", "x"), ("tool", "ok"), ("tool", "ok")])
    turns = list(row.turns)
    for place, patch in ((1, "--- first"), (2, "--- last")):
        result = turns[place].tool_results[0]
        handed = dataclasses.replace(result, data={"patch": patch, "exit_code": 3})
        turns[place] = dataclasses.replace(turns[place], tool_results=(handed,))
    write_step(tmp_path, [dataclasses.replace(row, turns=tuple(turns))])
    reader = open_run(tmp_path)
    assert group_answer(reader, "train", 1, "g")["siblings"][0]["patch"] == "--- last"
    answer = rollout_answer(reader, "train", 1, "a")
    assert answer["rows"][0]["turns"][2]["tool_results"][0]["exit_code"] == 3


def test_a_rollout_of_several_rows_is_one_answer(tmp_path):
    rows = [
        make_rollout("a", [("assistant", "first")], row_index=0),
        make_rollout("a", [("assistant", "then")], row_index=1),
        make_rollout("b", [("assistant", "other")]),
    ]
    write_step(tmp_path, [rows[1], rows[0], rows[2]])
    reader = open_run(tmp_path)
    answer = rollout_answer(reader, "train", 1, "a")
    assert [row["turns"][0]["text"] for row in answer["rows"]] == ["first", "then"]
    assert answer["action_tokens"] == 9
    assert (answer["previous"], answer["next"]) == (None, "b")
    assert answer["siblings"] == ["a", "b"]
    assert [s["n"] for s in step_answer(reader, "train", 1)["groups"]] == [2]
    sibling = group_answer(reader, "train", 1, "g")["siblings"][0]
    assert [action["text"] for action in sibling["actions"]] == ["first", "then"]
    assert (sibling["action_tokens"], sibling["turns"]) == (9, 2)
    second = tokens_answer(reader, "train", 1, "a", 1)
    assert second["ids"].tolist() == [1, 2, 3, *b"then"]
    with pytest.raises(RunError, match="no row 2; valid: 0, 1"):
        tokens_answer(reader, "train", 1, "a", 2)


def test_a_rollout_says_where_its_task_comes_again(reader, recorded_run):
    first = stored(recorded_run, step=1)[0].trajectory
    answer = rollout_answer(reader, "train", 1, first.rollout_id)
    again = [
        (row.step, row.trajectory.rollout_id)
        for row in stored(recorded_run)
        if row.trajectory.task_id == first.task_id
    ]
    assert [(same["step"], same["rollout_id"]) for same in answer["same_task"]] == again
    turn = answer["rows"][0]["turns"][1]
    assert [result["status"] for result in turn["tool_results"]] == ["ok", "error", "malformed"]
    assert "<script>alert('x')</script>" in turn["text"]
    assert "\x1b[31m" in turn["text"]
    assert answer["rows"][0]["n_tokens"] == len(first.prompt_ids) + len(first.response_ids)


def test_two_rollouts_are_compared_line_by_line(tmp_path):
    write_step(
        tmp_path,
        [
            make_rollout("a", [("assistant", "one\ntwo"), ("assistant", "end")]),
            make_rollout("b", [("assistant", "one\n2")]),
        ],
    )
    answer = diff_answer(open_run(tmp_path), ("train", 1, "a"), ("train", 1, "b"))
    assert answer["actions"][0]["lines"] == [[" ", "one"], ["-", "two"], ["+", "2"]]
    assert (answer["actions"][1]["a"], answer["actions"][1]["b"]) == ("end", None)
    assert answer["patch"] is None


def test_every_token_column_is_what_was_stored(reader, recorded_run):
    store = TokenStore(recorded_run / "tokens")
    compared = 0
    for row in stored(recorded_run, step=3):
        trajectory = row.trajectory
        answer = tokens_answer(reader, "train", 3, trajectory.rollout_id, 0)
        prompt = answer["n_prompt"]
        assert answer["ids"].tolist() == [*trajectory.prompt_ids, *trajectory.response_ids]
        assert answer["mask"].tolist() == [0] * prompt + list(trajectory.response_mask)
        sampled = answer["rollout_log_prob"]
        assert np.isnan(sampled[:prompt]).all()
        for place, kept in enumerate(trajectory.response_mask):
            value = sampled[prompt + place]
            expected = trajectory.rollout_log_probs[place]
            assert value == np.float32(expected) if kept else math.isnan(value)
            assert answer["version"][prompt + place] == (2 if kept else None)
        records = store.read(3, trajectory.rollout_id)
        shown = rollout_answer(reader, "train", 3, trajectory.rollout_id)
        assert [row["has_tokens"] for row in shown["rows"]] == [bool(records)]
        for record in records:
            # One update a step: the pass before it is the only one.
            assert (answer["log_prob"] is None) == (record.log_probs == record.old_log_probs)
            for place, trained in enumerate(record.trained):
                if trained:
                    old, now = record.old_log_probs[place], record.log_probs[place]
                    assert answer["old_log_prob"][prompt + place] == np.float32(old)
                    assert answer["gap"][prompt + place] == pytest.approx(
                        old - trajectory.rollout_log_probs[place], abs=1e-6
                    )
                    # This run has the default `algorithm.old_log_probs: rollout`.
                    behind = trajectory.rollout_log_probs[place]
                    assert answer["ratio"][prompt + place] == pytest.approx(
                        math.exp(now - behind), abs=1e-6
                    )
                    assert answer["clip"][prompt + place] == record.clip[place]
                    compared += 1
                else:
                    assert math.isnan(answer["entropy"][prompt + place])
    assert compared > 100


def test_the_text_of_tokens_is_exact(reader, recorded_run):
    row = stored(recorded_run, step=1)[0].trajectory
    answer = tokens_answer(reader, "train", 1, row.rollout_id, 0)
    assert "".join(answer["text"][: answer["n_prompt"]]) == row.prompt_text
    assert answer["text"][0] == "<|im_start|>"
    # A byte that is no character alone is not lost.
    assert any(text.startswith("\\x") for text in answer["text"])


def test_every_token_of_a_real_run_has_the_reason_that_its_end_gives(reader, recorded_run):
    expected = {
        "env_done": "trained",
        "max_turns": "truncated: masked",
        "max_tokens": "truncated: masked",
        "env_crashed": "dropped: env_crashed",
    }
    seen = set()
    for row in stored(recorded_run):
        answer = tokens_answer(reader, "train", row.step, row.trajectory.rollout_id, 0)
        why = [answer["why"]["legend"][code] for code in answer["why"]["codes"]]
        sampled = {reason for reason, kept in zip(why, answer["mask"], strict=True) if kept}
        reason = expected[row.trajectory.termination.value]
        if row.trajectory.response_ids:
            assert sampled == {reason}
        assert set(why[: answer["n_prompt"]]) == {"prompt", "reply prefix"}
        seen |= set(why)
    assert seen == {"prompt", "reply prefix", "environment", *expected.values()}
    row = stored(recorded_run, "eval/held", 2)[0].trajectory
    answer = tokens_answer(reader, "eval/held", 2, row.rollout_id, 0)
    assert "not in a batch (evaluation)" in answer["why"]["legend"]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"kind": "eval/x"}, "not in a batch (evaluation)"),
        ({"termination": "sandbox_failed", "advantage": None}, "dropped: sandbox_failed"),
        ({"termination": "stale"}, "dropped: stale"),
        ({"termination": "max_tokens", "mask_truncated": True}, "truncated: masked"),
        ({"termination": "max_tokens", "advantage": 0.0}, "zero advantage: not trained"),
        ({"advantage": None}, "dropped: not in the batch"),
        ({"advantage": None, "drop_reasons": ["stale", "too_easy"]}, "dropped: too_easy"),
        (
            {"advantage": None, "drop_reasons": ["too_hard", "too_easy"]},
            "dropped: not in the batch",
        ),
        ({"recorded_step": False}, "trained"),
        ({"step": 9}, "stale: masked"),
        ({}, "masked: not in the loss"),
        (
            {"termination": "of another version", "advantage": 0.0},
            "zero advantage: not trained",
        ),
    ],
)
def test_why_a_row_was_not_computed(facts, reason):
    known = {
        "kind": "train", "step": 6, "termination": "env_done", "advantage": 0.5,
        "mask_truncated": False, "recorded_step": True, "drop_reasons": (),
    }  # fmt: skip
    why = explain(
        Facts(**{**known, **facts}),
        n_prompt=1,
        mask=np.array([1, 0]),
        versions=np.array([5, -1]),
        turns=[{"role": "assistant", "start": 0, "end": 1}],
        record=None,
    )
    assert [why.legend[code] for code in why.codes] == ["prompt", reason, "environment"]


def test_tokens_of_old_weights_among_trained_ones_are_stale():
    nothing = [0.0, 0.0]
    record = TrainedTokens(
        group_id="g", rollout_id="r", row_index=0, updates=1, trained=[False, True],
        old_log_probs=nothing, log_probs=nothing, entropy=nothing, advantages=nothing,
        correction=nothing, clip=[0, 0], loss=nothing,
    )  # fmt: skip
    facts = Facts(
        kind="train", step=3, termination="env_done", advantage=1.0, mask_truncated=False,
        recorded_step=True, drop_reasons=(),
    )  # fmt: skip
    why = explain(
        facts, n_prompt=0, mask=np.array([1, 1, 1]), versions=np.array([1, 2, 2]),
        turns=[{"role": "assistant", "start": 0, "end": 3}], record=record,
    )  # fmt: skip
    assert [why.legend[code] for code in why.codes] == [
        "stale: masked", "trained", "masked: not in the loss",
    ]  # fmt: skip


def test_a_reply_prefix_is_found_only_where_it_stands_whole():
    texts = ["a", "``", "`py", "def", "``", "`p", "x"]
    assert prefix_spans(texts, [3, 6], "```py") == [(1, 3)]
    assert prefix_spans(texts, [0], "```py") == []
    assert prefix_spans(texts, [3], "") == []


def all_text(trajectory) -> str:
    turns = trajectory.turns
    results = [result.text for turn in turns for result in turn.tool_results]
    return "\n".join([trajectory.prompt_text, *(turn.text for turn in turns), *results])


def statuses(trajectory) -> set[str]:
    calls = (one for turn in trajectory.turns for one in (*turn.tool_calls, *turn.tool_results))
    return {one.status.value for one in calls}


@pytest.mark.parametrize(
    ("question", "fits"),
    [
        ({"text": "ALERT('X')"}, lambda r: "alert('x')" in all_text(r.trajectory).lower()),
        ({"text": "say 7"}, lambda r: "say 7" in r.trajectory.prompt_text),
        ({"text": "[31m"}, lambda r: "[31m" in all_text(r.trajectory)),
        ({"text": "nobody says this"}, lambda r: False),
        ({"kind": "train"}, lambda r: r.kind == "train"),
        ({"task": "ain/1"}, lambda r: "train/1" in r.trajectory.task_id),
        ({"termination": "env_crashed"}, lambda r: r.trajectory.termination == "env_crashed"),
        ({"tool_status": "malformed"}, lambda r: "malformed" in statuses(r.trajectory)),
        ({"tool_status": "any_error"}, lambda r: statuses(r.trajectory) - {"ok"}),
        ({"tool_status": "timeout"}, lambda r: False),
        ({"reward_min": 0.1, "reward_max": 0.2},
         lambda r: r.trajectory.reward is not None and 0.1 <= r.trajectory.reward <= 0.2),
        ({"truncated": True}, lambda r: r.trajectory.rule.truncated),
        ({"truncated": False}, lambda r: not r.trajectory.rule.truncated),
        ({"zero_advantage": True}, lambda r: r.advantage == 0),
        ({"step_min": 2, "step_max": 3}, lambda r: 2 <= r.step <= 3),
        ({"lag_min": 0}, lambda r: r.kind == "train" and any(r.trajectory.response_mask)),
        ({"lag_min": 1}, lambda r: False),
        ({"text": "assistant", "termination": "max_turns", "step_min": 2},
         lambda r: r.trajectory.termination == "max_turns" and r.step >= 2),
    ],
)  # fmt: skip
def test_find_gives_what_reading_everything_gives(reader, recorded_run, question, fits):
    expected = {
        (row.kind, row.step, row.trajectory.rollout_id)
        for kind in ("train", "eval/held")
        for row in stored(recorded_run, kind)
        if fits(row)
    }
    answer = find_answer(reader, Question(**question, limit=1000))
    hits = [(hit["kind"], hit["step"], hit["rollout_id"]) for hit in answer["hits"]]
    assert len(hits) == len(set(hits)) == answer["total"]
    assert set(hits) == expected


def test_find_shows_the_place_and_pages_through(reader):
    answer = find_answer(reader, Question(text="ONERROR", kind="train", limit=2))
    before, match, after = answer["hits"][0]["snippet"]
    assert match == "onerror"
    assert before.endswith("<img src=x ")
    assert after.startswith("=alert(1)>")
    assert answer["hits"][0]["turn"] == 1
    rest = find_answer(reader, Question(text="ONERROR", kind="train", limit=1, offset=1))
    assert rest["hits"][0] == answer["hits"][1]


def test_find_shows_the_match_behind_letters_that_grow_in_lower_case(tmp_path):
    text = "\u0130\u0130\u0130 Needle here"
    write_step(tmp_path, [make_rollout("a", [("assistant", text)])])
    answer = find_answer(open_run(tmp_path), Question(text="needle"))
    assert answer["hits"][0]["snippet"] == ["\u0130\u0130\u0130 ", "Needle", " here"]


def test_a_file_that_is_torn_in_place_is_named_by_the_search_that_reads_it(tmp_path):
    for step in (1, 2):
        write_step(tmp_path, [make_rollout(f"s{step}", [("assistant", "needle")])], step)
    reader = open_run(tmp_path)
    assert find_answer(reader, Question(text="needle"))["notes"] == []
    path = TrajectoryStore(tmp_path / "trajectories").path(1, "train")
    raw, status = path.read_bytes(), path.stat()
    # Where the columns lie, and as a disk would do it: without a new time or size.
    path.write_bytes(raw[:4] + bytes(len(raw) // 2) + raw[4 + len(raw) // 2 :])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    answer = find_answer(reader, Question(text="needle"))
    assert [hit["rollout_id"] for hit in answer["hits"]] == ["s2"]
    assert answer["notes"][0].startswith("trajectories/train/step_000001.parquet: torn or damaged:")


def test_every_hit_shows_its_own_words_however_many_and_long_they_are(tmp_path):
    # More than are kept of one file, in two files, and a turn that is too long to be kept.
    for step in (1, 2):
        rows = [
            make_rollout(f"s{step}-{n}", [("assistant", f"needle of s{step}-{n} " + "z" * long)])
            for n, long in enumerate((0, 9, 0, 99, 0, 0, 200_000, 0))
        ]
        write_step(tmp_path, rows, step)
    for limit, offset in ((50, 0), (5, 6)):
        question = Question(text="NEEDLE", limit=limit, offset=offset)
        hits = find_answer(open_run(tmp_path), question)["hits"]
        assert len(hits) == min(limit, 16)
        for hit in hits:
            assert hit["snippet"][2].startswith(f" of {hit['rollout_id']} ")
            assert hit["turn"] == 0


def test_find_by_the_gap_between_trainer_and_sampler(tmp_path):
    rows = [make_rollout(name, [("assistant", "four")]) for name in ("near", "far", "masked")]
    write_step(tmp_path, rows)
    write_step(tmp_path, rows, kind="eval/x")
    TokenStore(tmp_path / "tokens").write(1, 0, [
        TrainedTokens(
            group_id="g", rollout_id=name, row_index=0, updates=1,
            trained=[True, True, True, name != "masked"],
            old_log_probs=[-0.5, -0.5, -0.5, -0.5 - gap], log_probs=[0.0] * 4, entropy=[0.0] * 4,
            advantages=[0.0] * 4, correction=[1.0] * 4, clip=[0] * 4, loss=[0.0] * 4,
        )
        for name, gap in (("near", 0.1), ("far", 2.0), ("masked", 9.0))
    ])  # fmt: skip
    reader = open_run(tmp_path)

    def found(gap: float) -> list[str]:
        return [hit["rollout_id"] for hit in find_answer(reader, Question(gap_min=gap))["hits"]]

    tokens = tokens_answer(reader, "train", 1, "far", 0)
    assert tokens["gap"].tolist()[-2:] == [0.0, -2.0]
    assert tokens["ratio"].tolist()[-2:] == pytest.approx([math.exp(0.5), math.exp(2.5)])
    assert found(1.0) == ["far"]
    assert found(0.05) == ["near", "far"]


def test_find_by_how_calls_ended_counts_a_rollout_once(tmp_path):
    works = make_rollout("works", [("assistant", "x"), ("tool", "y")])
    results = (dataclasses.replace(works.turns[1].tool_results[0], status=ToolStatus.OK),)
    turns = (works.turns[0], dataclasses.replace(works.turns[1], tool_results=results))
    fails = [("assistant", "x"), ("tool", "y")]
    write_step(
        tmp_path,
        [
            dataclasses.replace(works, turns=turns),
            make_rollout("fails", fails),
            make_rollout("fails", fails, row_index=1),
        ],
    )
    answer = find_answer(open_run(tmp_path), Question(tool_status="any_error"))
    assert [hit["rollout_id"] for hit in answer["hits"]] == ["fails"]
    assert answer["total"] == 1
    assert find_answer(open_run(tmp_path), Question(text="y"))["total"] == 2


def test_the_oldest_token_decides_the_lag(tmp_path):
    versions = {"fresh": (4, 4), "half": (2, 4)}
    rows = [
        make_rollout(name, [("assistant", "ab")], policy_versions=v) for name, v in versions.items()
    ]
    write_step(tmp_path, rows, step=5)
    reader = open_run(tmp_path)
    assert rollout_answer(reader, "train", 5, "half")["version_lag"] == 2
    hits = find_answer(reader, Question(lag_min=1))["hits"]
    assert [hit["rollout_id"] for hit in hits] == ["half"]


def test_a_run_that_writes_is_seen_to_write(run_copy):
    held_back = run_copy / "trajectories" / "train" / "step_000004.parquet"
    content = held_back.read_bytes()
    held_back.unlink()
    reader = open_run(run_copy)
    assert step_answer(reader, "train", None)["step"] == 3
    assert run_entry(reader)["steps"] == 4
    before = reader.revision()
    held_back.write_bytes(content)
    assert reader.revision() != before
    assert step_answer(reader, "train", None)["step"] == 4
    before = reader.revision()
    write_metrics(run_copy, {"step": 5, "time": 1.0, "reward": 0.5})
    assert reader.revision() != before
    assert run_overview(reader)["metrics"]["reward"]["steps"][-1] == 5
    assert reader.revision() == reader.revision()


def test_a_file_that_is_still_being_copied_is_seen_when_it_is_whole(tmp_path):
    path = write_step(tmp_path, [make_rollout("a", [("assistant", "x")])])
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    reader = open_run(tmp_path)
    reader.rows = StoredRows(tmp_path, look_s=0.0)
    reader.rows.refresh()
    path.write_bytes(whole)  # the folder does not change
    assert step_answer(reader, "train", 1)["notes"] == []


def test_a_step_that_appears_is_seen_at_once_however_long_nothing_came(tmp_path):
    rows = [make_rollout("a", [("assistant", "x")])]
    write_step(tmp_path, rows)
    reader = open_run(tmp_path)
    for _ in range(3):
        reader.rows.refresh()
        time.sleep(0.15)
    write_step(tmp_path, rows, step=2)
    write_step(tmp_path, rows, kind="eval/x")
    assert step_answer(reader, "train", None)["step"] == 2
    write_step(tmp_path, rows, kind="eval/x", step=2)
    time.sleep(0.15)
    assert step_answer(reader, "eval/x", None)["steps"] == [1, 2]


def test_a_step_that_is_written_again_replaces_what_was_known(tmp_path):
    write_step(tmp_path, [make_rollout("old", [("assistant", "x")])])
    reader = open_run(tmp_path)
    assert rollout_answer(reader, "train", 1, "old")["action_tokens"] == 1
    write_step(tmp_path, [make_rollout("new", [("assistant", "xyz")])])
    assert rollout_answer(reader, "train", 1, "new")["action_tokens"] == 3
    with pytest.raises(RunError, match="no rollout 'old'"):
        rollout_answer(reader, "train", 1, "old")
    # Between looking for a row and reading it.
    shelf = reader.rows.shelf("train", 1)
    write_step(tmp_path, [make_rollout(name, [("assistant", "x")]) for name in "ab"])
    with pytest.raises(RunError, match="written again just now"):
        reader.rows.read(shelf, [0], ["turns"])
