"""The line of words and filters: regular expressions, roles, orders, and hits shown first."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from agentrl.errors import RunError
from agentrl.inspect.pages.find import TEXT_COLUMNS, find_answer
from agentrl.inspect.pages.find_line import SORTS, parse_question
from agentrl.inspect.pages.find_text import row_groups
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.read.kept_columns import KEPT, KeptColumns, mark_of
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from tests.inspect.synthetic import make_rollout, write_step


@pytest.fixture(scope="module")
def reader(recorded_run) -> RunReader:
    return RunReader(FoundRun(id="recorded", path=recorded_run))


def hits(reader: RunReader, line: str) -> list[dict]:
    return find_answer(reader, parse_question(line, limit=1000))["hits"]


def test_a_hit_in_what_the_policy_wrote_comes_before_its_prompt(reader: RunReader) -> None:
    """Fails if a word that each prompt has hides where the policy wrote it."""
    some = hits(reader, "kind:train")[0]
    rollout = rollout_answer(reader, some["kind"], some["step"], some["rollout_id"])
    said = next(t["text"] for t in rollout["rows"][0]["turns"] if t["role"] == "assistant")
    word = said[:3]
    found = hits(reader, f"{word} role:assistant kind:train")
    assert found
    assert all(hit["turn"] is not None for hit in found)
    everywhere = {h["rollout_id"]: h for h in hits(reader, f"{word} kind:train")}
    assert all(everywhere[hit["rollout_id"]]["turn"] == hit["turn"] for hit in found)
    assert all(hit["turn"] is None for hit in hits(reader, "im_start role:prompt"))
    assert len(hits(reader, "role:prompt im_start")) == len(hits(reader, "kind:train")) + len(
        [hit for hit in hits(reader, "step>=0") if hit["kind"] != "train"]
    )


def test_text_between_slashes_is_a_regular_expression(reader: RunReader) -> None:
    plain = hits(reader, "im_start")
    assert len(hits(reader, "/im_st.rt/")) == len(plain) > 0
    assert not hits(reader, "im_st.rt")
    assert hits(reader, "/IM_[a-z]+/")[0]["snippet"][1] == "im_start"
    with pytest.raises(RunError, match="no regular expression"):
        hits(reader, "/(/")
    with pytest.raises(RunError, match="no regular expression"):
        hits(reader, r"/(a)\1/")


@pytest.mark.parametrize("name", SORTS)
def test_what_is_found_is_sorted_in_both_directions(reader: RunReader, name: str) -> None:
    up, down = hits(reader, f"kind:train sort:{name}"), hits(reader, f"kind:train sort:-{name}")
    assert len(up) == len(down) > 3
    if name == "tokens":
        lengths = []
        for hit in up:
            found = rollout_answer(reader, hit["kind"], hit["step"], hit["rollout_id"])
            turns = found["rows"][hit["row_index"]]["turns"]
            lengths.append(sum(t["end"] - t["start"] for t in turns if t["role"] == "assistant"))
        assert lengths == sorted(lengths)
        assert lengths[0] < lengths[-1]
        return
    values = [hit[name] for hit in up if hit[name] is not None]
    assert values == sorted(values)
    assert values[0] < values[-1]
    assert [hit[name] for hit in down if hit[name] is not None] == values[::-1]


def test_scores_are_bounds_and_mistakes_are_named(reader: RunReader) -> None:
    low, high = hits(reader, "kind:train score<=0.5"), hits(reader, "kind:train score>0.5")
    assert all(hit["score"] <= 0.5 for hit in low)
    assert all(hit["score"] > 0.5 for hit in high)
    assert not hits(reader, "kind:train score>1")
    assert not hits(reader, "kind:train step<1")
    least, most = (hits(reader, f"kind:train score{sign}1") for sign in ("<", "<="))
    assert {hit["score"] for hit in most} - {hit["score"] for hit in least} == {1.0}
    scored = [hit for hit in hits(reader, "kind:train") if hit["score"] is not None]
    found = {hit["rollout_id"] for hit in (*low, *high)}
    assert found == {hit["rollout_id"] for hit in scored}
    assert 0 < len(low) < len(scored)
    for line, valid in (("role:me x", "role:assistant"), ("sort:size", "sort:reward")):
        with pytest.raises(RunError, match=valid):
            parse_question(line)


def step_of_texts(run: Path, step: int, text: str) -> None:
    write_step(run, [make_rollout(f"s{step}-{n}", [("assistant", f"{text} {n}")])
                     for n in range(3)], step)  # fmt: skip


def test_a_step_that_was_searched_is_searched_in_memory_until_it_is_written_again(
    tmp_path: Path,
) -> None:
    """Fails if texts are not kept, or if what is kept outlives its file."""
    for step in (1, 2):
        step_of_texts(tmp_path, step, "first words")
    reader = RunReader(FoundRun(id="run", path=tmp_path))
    assert len(hits(reader, "first words")) == 6
    shelf = reader.rows.shelf("train", 1)
    mark = mark_of(shelf, TEXT_COLUMNS)
    kept = KEPT.get(mark)
    assert kept is not None
    assert [table is again for (_, table), (_, again) in
            zip(kept, row_groups(reader, shelf, TEXT_COLUMNS), strict=True)] == [True]  # fmt: skip
    step_of_texts(tmp_path, 1, "other words")
    assert [hit["step"] for hit in hits(reader, "first words")] == [2, 2, 2]
    assert [hit["step"] for hit in hits(reader, "other words")] == [1, 1, 1]


def test_what_is_kept_stays_within_its_bound_and_other_runs_make_room(tmp_path: Path) -> None:
    """Fails if memory grows with every run, or a run throws out its own steps while it is read."""
    table = pa.table({"text": ["x" * 100]})
    kept = KeptColumns(most_bytes=2 * table.nbytes)
    marks = {name: (((tmp_path / name, 0, 0, 0),), ("text",)) for name in "abcd"}
    one, two = tmp_path / "one", tmp_path / "two"
    for name, run in (("a", one), ("b", one), ("c", one)):
        kept.keep(marks[name], run, ((0, table),))
    assert [name for name in marks if kept.get(marks[name])] == ["a", "b"]
    kept.keep(marks["d"], two, ((0, table),))
    assert [name for name in marks if kept.get(marks[name])] == ["b", "d"]
    kept.keep(marks["c"], two, ((0, pa.table({"text": ["x" * 1000]})),))
    assert kept.get(marks["c"]) is None
