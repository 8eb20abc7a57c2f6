"""Runs that are torn, copied half, of another version, or made to do harm."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.data import TrajectoryStore
from agentrl.data.store.token_store import TokenStore
from agentrl.errors import RunError
from agentrl.health.journal import HealthJournal
from agentrl.inspect.export.files import export_pieces
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.find import find_answer
from agentrl.inspect.pages.find_line import Question
from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.hacking.answer import hacking_answer
from agentrl.inspect.pages.hacking.clusters import clusters_answer
from agentrl.inspect.pages.overview import run_entry, run_overview
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.pages.task import task_answer
from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.query.database import RunDatabase, load_duckdb
from agentrl.inspect.query.sql import Queries
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun, find_runs, run_state
from agentrl.inspect.read.safe_json import MOST_CHARS, jsonable
from agentrl.inspect.read.token_text import token_pieces
from agentrl.inspect.web.library import Library
from agentrl.types import TrainedTokens
from tests.inspect.synthetic import make_rollout, write_metrics, write_step


def open_run(path: Path) -> RunReader:
    return RunReader(FoundRun(id="run", path=path))


def count_rows(run: Path, view: str) -> int:
    with Queries() as queries:
        return queries.ask(run, f"select count(*) from {view}").rows()[0][0]


def ask_everything(reader: RunReader, kind: str = "train", step: int = 1) -> list[bytes]:
    """Every view of the first rollout of a step, as JSON."""
    groups = step_answer(reader, kind, step)
    group = group_answer(reader, kind, step, groups["groups"][0]["group_id"])
    rollout = group["siblings"][0]["rollout_id"]
    return [
        jsonable(answer)
        for answer in (
            run_entry(reader),
            run_overview(reader),
            groups,
            group,
            rollout_answer(reader, kind, step, rollout),
            tokens_answer(reader, kind, step, rollout, 0),
            find_answer(reader, Question(text="x")),
            find_answer(reader, Question(like=rollout)),
            hacking_answer(reader, kind, step),
            clusters_answer(reader, kind),
            tasks_answer(reader, TaskQuestion(kind=kind)),
            task_answer(reader, group["task_id"]),
            compare_answer(*2 * (Side(reader=reader, kind=kind, steps=(step, step)),)),
        )
    ]


def test_nothing_is_written_into_a_run(run_copy):
    def state() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), path.stat().st_mtime_ns, path.stat().st_size)
            for path in [run_copy, *run_copy.rglob("*")]
        )

    before = state()
    reader = open_run(run_copy)
    ask_everything(reader)
    count_rows(run_copy, "tokens")
    run_state(run_copy)
    assert state() == before


def test_a_torn_file_is_named_and_the_others_are_shown(run_copy):
    train = run_copy / "trajectories" / "train"
    torn = train / "step_000002.parquet"
    torn.write_bytes(torn.read_bytes()[:-100])
    (train / "step_000003.parquet").write_bytes(b"not parquet at all")
    (train / "step_000009.parquet").mkdir()
    (train / "step_000010.parquet").write_bytes(b"")
    os.mkfifo(train / "step_000011.parquet")
    reader = open_run(run_copy)
    answer = step_answer(reader, "train", 1)
    assert answer["steps"] == [1, 4]
    assert [note.partition(":")[0] for note in answer["notes"]] == [
        f"trajectories/train/step_{step:06d}.parquet" for step in (2, 3, 9, 10, 11)
    ]
    with pytest.raises(RunError, match="step 2 of train has no trajectories that can be read"):
        step_answer(reader, "train", 2)
    ask_everything(reader)


def test_a_page_that_is_damaged_behind_a_good_footer_is_a_message(tmp_path):
    path = write_step(tmp_path, [make_rollout("a", [("assistant", "hello there")])])
    whole = path.read_bytes()
    written = pq.read_table(path, columns=["turns"])
    columns = pq.read_metadata(path).row_group(0).to_dict()["columns"]
    turns = next(each for each in columns if each["path_in_schema"].startswith("turns"))
    # A byte whose change no decoder notices: only the checksum of its page tells.
    for place in range(turns["data_page_offset"], len(whole) // 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            if pq.read_table(path, columns=["turns"]) != written:
                break
        except (OSError, pa.ArrowException):
            continue
    else:
        raise AssertionError("every change was noticed")
    reader = open_run(tmp_path)
    with pytest.raises(RunError, match=r"step_000001\.parquet cannot be read"):
        rollout_answer(reader, "train", 1, "a")
    assert "torn or damaged" in step_answer(reader, "train", 1)["notes"][0]


def test_a_file_of_a_newer_version_is_left_out_with_the_reason(tmp_path):
    path = write_step(tmp_path, [make_rollout("a", [("assistant", "x")])])
    newer = write_step(tmp_path, [make_rollout("b", [("assistant", "x")])], step=2)
    table = pq.read_table(newer)
    pq.write_table(table.replace_schema_metadata({"agentrl.schema_version": "99"}), newer)
    answer = step_answer(open_run(tmp_path), "train", None)
    assert answer["step"] == 1
    assert "99" in answer["notes"][0]
    assert path.exists()


def test_a_folder_with_nothing_but_trajectories_is_shown(tmp_path):
    write_step(tmp_path, [make_rollout("a", [("assistant", "x")])], kind="eval/a=b %2F/..")
    reader = open_run(tmp_path)
    answers = ask_everything(reader, kind="eval/a=b %2F/..")
    assert len(answers) == 13
    assert run_entry(reader)["model"] == ""


def test_metrics_that_are_torn_or_nonsense_are_counted_in_a_note(run_copy):
    with (run_copy / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": "x"}\n[1]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"step": 9, "rew')
    (run_copy / "result.json").write_text("[" * 100_000)
    (run_copy / "run.json").write_bytes(b"\xff")
    (run_copy / "health.jsonl").write_text(
        '{"step": 2, "what": "decision", "text": "<b>stop</b>"}\nnonsense\n{"step": 3}\n'
    )
    overview = run_overview(open_run(run_copy))
    assert overview["metrics"]["reward"]["steps"] == (1, 2, 3, 4)
    assert {"step": 2, "what": "decision", "text": "<b>stop</b>"} in overview["events"]
    assert sum("torn" in note for note in overview["notes"]) == 2
    jsonable(overview)


@pytest.mark.parametrize("config", [b"\xff\xfe", b"{", b"env: 3", b"a: &a [*a, *a]", b"- 1", b""])
def test_a_config_of_another_make_does_not_hide_the_run(run_copy, config):
    (run_copy / "config.yaml").write_bytes(config)
    ask_everything(open_run(run_copy))


def test_lists_in_lists_of_a_config_end_somewhere(run_copy):
    (run_copy / "config.yaml").write_text("rules: [1, [2, [3]]]")
    assert run_overview(open_run(run_copy))["config"]["rules"] == [1, [2, "(1 values)"]]


def test_text_that_no_encoding_allows_is_shown_as_far_as_it_can_be(tmp_path):
    nasty = "lone \ud800 null \x00 mark \U0010ffff end"
    write_step(tmp_path, [
        make_rollout(f"r{nasty}", [("assistant", nasty)], group_id=f"g{nasty}", task_id=nasty),
    ])  # fmt: skip
    zeros = [0.0] * 50
    TokenStore(tmp_path / "tokens").write(1, 0, [
        TrainedTokens(
            group_id=f"g{nasty}", rollout_id=f"r{nasty}", row_index=0, updates=1,
            trained=[True] * 50, old_log_probs=zeros, log_probs=zeros, entropy=zeros,
            advantages=zeros, correction=zeros, clip=[0] * 50, loss=zeros,
        )
    ])  # fmt: skip
    reader = open_run(tmp_path)
    for body in ask_everything(reader):
        json.loads(body)
    index = reader.rows.table().to_pylist()[0]
    assert rollout_answer(reader, "train", 1, index["rollout_id"])["rows"][0]["has_tokens"]
    group = step_answer(reader, "train", 1)["groups"][0]
    # What is sent back as a question finds what it came from.
    again = json.loads(json.dumps(group["group_id"]).encode())
    assert group_answer(reader, "train", 1, again)["siblings"]
    assert group_answer(reader, "train", 1, again)["siblings"][0]["actions"][0]["text"] == (
        "lone \ufffd null \x00 mark \ufffd end"
    )


def test_bytes_that_are_no_utf8_are_replaced(tmp_path):
    path = write_step(tmp_path, [make_rollout("a", [("assistant", "MARK")])])
    table = pq.read_table(path)
    broken = pa.array([b"bad \xff\xfe"], pa.binary()).view(pa.string())
    table = table.set_column(table.schema.get_field_index("prompt_text"), "prompt_text", broken)
    pq.write_table(table, path)
    reader = open_run(tmp_path)
    ask_everything(reader)
    assert rollout_answer(reader, "train", 1, "a")["rows"][0]["prompt_text"] == "bad \ufffd\ufffd"


def test_ten_megabytes_on_a_line_are_cut_with_a_word_about_it(tmp_path):
    write_step(tmp_path, [make_rollout("a", [("assistant", "y" * 10_000_000 + "needle")])])
    reader = open_run(tmp_path)
    bodies = ask_everything(reader)
    assert max(map(len, bodies)) < 2 * MOST_CHARS
    text = rollout_answer(reader, "train", 1, "a")["rows"][0]["turns"][0]["text"]
    assert text.endswith("[... 9,000,006 characters more; export the rollout to see them]")
    assert find_answer(reader, Question(text="NEEDLE"))["hits"][0]["snippet"][1] == "needle"


def test_numbers_that_json_does_not_have_are_null():
    import numpy as np

    value = {"a": float("nan"), "b": np.array([1.0, np.inf]), "c": 2**70, 3: "\ud800"}
    assert orjson.loads(jsonable(value)) == {
        "a": None, "b": [1.0, None], "c": str(2**70), "3": "\ufffd",
    }  # fmt: skip


def test_a_run_that_is_gone_is_said_to_be(run_copy):
    reader = open_run(run_copy)
    run_overview(reader)
    shutil.rmtree(run_copy)
    with pytest.raises(RunError, match="does not exist"):
        run_overview(reader)
    with pytest.raises(RunError, match="no rollout is stored here"):
        step_answer(reader, "train", 1)


def test_a_tokenizer_that_cannot_be_read_costs_the_texts_only(run_copy):
    for path in (run_copy / "tokenizer.json", *run_copy.glob("checkpoints/*/tokenizer.json")):
        path.write_text('{"model": "nonsense"}')
    reader = open_run(run_copy)
    rollout = step_answer(reader, "train", 1)["groups"][0]["group_id"] + "/0"
    answer = tokens_answer(reader, "train", 1, rollout, 0)
    assert answer["text"] is None
    assert "tokenizer" in answer["note"]


def test_texts_are_shown_before_the_first_checkpoint(run_copy):
    """Fails if a run keeps its tokenizer only in its checkpoints."""
    shutil.rmtree(run_copy / "checkpoints")
    reader = open_run(run_copy)
    rollout = step_answer(reader, "train", 1)["groups"][0]["group_id"] + "/0"
    assert tokens_answer(reader, "train", 1, rollout, 0)["text"]


def test_pieces_of_a_sentencepiece_tokenizer(tmp_path):
    from tokenizers import Tokenizer, decoders, models

    vocab = {"\u2581the": 0, "<0x0A>": 1, "<0xF0>": 2, "\u00e9": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pieces = token_pieces(tmp_path / "tokenizer.json")
    assert pieces is not None
    assert pieces([0, 1, 2, 3, 9, -1]) == [
        " the", "\n", "\\xf0", "\u00e9", "<unknown id 9>", "<unknown id -1>",
    ]  # fmt: skip


def test_pieces_of_a_bytewise_tokenizer(tmp_path):
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokenizer = Tokenizer(
        models.BPE(vocab={"\u0120a": 0, "\u00c3": 1, "\u00c3\u00a9": 2}, merges=[])
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<\u00e9>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pieces = token_pieces(tmp_path / "tokenizer.json")
    assert pieces is not None
    assert pieces([0, 1, 2, 3]) == [" a", "\\xc3", "\u00e9", "<\u00e9>"]


def test_runs_are_found_below_a_folder_with_ids_of_their_own(tmp_path):
    for name in ("a/run", "b/run", "b/deep/er/run"):
        write_metrics(tmp_path / name, {"step": 1, "reward": 0.5})
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "not-a-run").mkdir()
    found = find_runs([tmp_path, tmp_path / "a" / "run", tmp_path / "b"])
    assert [run.id for run in found] == ["a/run", "b/deep/er/run", "b/run"]
    assert [run.id for run in find_runs([tmp_path / "a/run", tmp_path / "b/run"])] == [
        "run", "run#2",
    ]  # fmt: skip
    with pytest.raises(RunError, match="does not exist"):
        find_runs([tmp_path / "none"])
    with pytest.raises(RunError, match="there is no run at or below"):
        Library([tmp_path / "not-a-run"])


def test_a_run_that_appears_later_is_found(tmp_path):
    write_metrics(tmp_path / "one", {"step": 1, "reward": 0.5})
    library = Library([tmp_path], look_s=0.0)
    first = library.reader("one")
    write_metrics(tmp_path / "another", {"step": 1, "reward": 0.5})
    assert [reader.run.id for reader in library.readers()] == ["another", "one"]
    assert library.reader("one") is first
    with pytest.raises(RunError, match="did you mean 'one'"):
        library.reader("ome")
    # A folder that is gone leaves its runs to say so themselves.
    tmp_path.rename(tmp_path.parent / "moved")
    assert len(library.readers()) == 2
    (tmp_path.parent / "moved").rename(tmp_path)
    library.close()


def test_the_state_of_a_run_is_told_by_its_lock(run_copy):
    assert run_state(run_copy) == "finished"
    with (run_copy / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_state(run_copy) == "running"
        (run_copy / "control").write_text('{"state": "paused", "step": 3, "why": "kl > 1"}')
        assert run_state(run_copy) == "paused"
        pause = run_overview(open_run(run_copy))["paused"]
        assert (pause["step"], pause["why"]) == (3, "kl > 1")
        assert pause["answer"] == f"agentrl control {run_copy} continue"
        for other in ('{"state": "continue"}', "[]", ""):
            (run_copy / "control").write_text(other)
            assert run_state(run_copy) == "running"
        copied = shutil.copytree(run_copy, run_copy.parent / "copied")
        assert run_state(copied) == "finished"
    (run_copy / "result.json").unlink()
    assert run_state(run_copy) == "stopped"
    # A run of another machine: what it wrote last has to tell.
    (run_copy / ".lock").write_text("process 1 on another-machine")
    assert run_state(run_copy) == "running"
    for path in run_copy.iterdir():
        os.utime(path, (1, 1))
    assert run_state(run_copy) == "stopped"


def test_asking_for_the_state_never_takes_the_lock(run_copy):
    """A run that starts just then must find its lock free."""
    run_state(run_copy)
    with (run_copy / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


PIPES = (
    ".lock", "metrics.jsonl", "health.jsonl", "result.json", "run.json", "config.yaml",
    "tokens/step_000001.rank-0.parquet", "trajectories/train/step_000002.parquet",
)  # fmt: skip


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_under_the_name_of_a_file_is_waited_for_by_nobody(run_copy, name):
    (run_copy / name).unlink(missing_ok=True)
    os.mkfifo(run_copy / name)

    def ask() -> int:
        reader = open_run(run_copy)
        ask_everything(reader)
        stored = TrajectoryStore(run_copy / "trajectories").read("train", step=1)
        assert b"".join(export_pieces(ExportFormat.HTML, stored, reader))
        assert HealthJournal(run_copy / "health.jsonl").read() is not None
        return count_rows(run_copy, "trajectories")

    answers: list[int] = []
    # A thread that waits for the pipe cannot be ended, so it must not hold up the tests.
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(120)
    assert answers
    assert answers[0] > 0


@pytest.fixture
def not_root() -> Iterator[None]:
    """Root may read everything, so whoever runs the tests as root is somebody else here."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


def test_what_may_not_be_read_hides_nothing_else(request, monkeypatch):
    folder = Path(tempfile.mkdtemp())  # tmp_path lies below a folder that is for its owner only
    try:
        for name in ("a-closed", "b-half", "c-open"):
            write_step(folder / name, [make_rollout("a", [("assistant", "x")])])
        folder.chmod(0o755)
        (folder / "a-closed").chmod(0)
        (folder / "b-half" / "trajectories").chmod(0)
        load_duckdb()  # whom the test pretends to be may not read the libraries either
        request.getfixturevalue("not_root")
        assert [run.path.name for run in find_runs([folder])] == ["b-half", "c-open"]
        half = open_run(folder / "b-half")
        run_overview(half)
        assert find_answer(half, Question(text="x"))["hits"] == []
        # In this process: whom the test pretends to be may not even start another one.
        RunDatabase(half.path, memory_mb=256).close()
        assert "trajectories: you have no permission to read it" in half.rows.notes
        assert ask_everything(open_run(folder / "c-open"))
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        for closed in (folder / "a-closed", folder / "b-half" / "trajectories"):
            closed.chmod(0o755)
        shutil.rmtree(folder)
