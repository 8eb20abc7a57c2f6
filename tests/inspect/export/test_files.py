from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.cli.traj.command import app
from agentrl.data import StoredTrajectory, TokenStore, TrajectoryStore
from agentrl.data.store.columns import SCHEMA, encode
from agentrl.data.store.trajectory_store import write_rows
from agentrl.errors import RunError
from agentrl.inspect.export.atif import atif_document
from agentrl.inspect.export.bundle import bundle
from agentrl.inspect.export.files import export_pieces
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.types import CallStatus, ToolCall, ToolResult, TrainedTokens, Turn
from tests.data.records import trajectory

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\x00\ud800\u202e\" '&"


def stored(**values: object) -> StoredTrajectory:
    return StoredTrajectory(step=3, kind="train", advantage=0.5, trajectory=trajectory(**values))


def hostile() -> StoredTrajectory:
    call = ToolCall(
        id=HOSTILE, name=HOSTILE, arguments={HOSTILE: [HOSTILE]}, raw=HOSTILE, error=HOSTILE,
        status=CallStatus.MALFORMED,
    )  # fmt: skip
    result = ToolResult(text=HOSTILE, call_id=HOSTILE, name=HOSTILE, data={HOSTILE: float("nan")})
    turns = (
        Turn(role="assistant", start=0, end=2, text=HOSTILE, tool_calls=(call,)),
        Turn(role="tool", start=2, end=4, text="other", tool_results=(result,)),
    )
    return stored(
        task_id=HOSTILE, group_id=HOSTILE, rollout_id=HOSTILE, prompt_text=HOSTILE, turns=turns,
        termination_detail=HOSTILE, reward=float("nan"), reward_parts={HOSTILE: float("inf")},
    )  # fmt: skip


def checked(document: dict) -> dict:
    """A document that the format's own models took, and that holds what Harbor asks for besides."""
    from nat.atif.trajectory import Trajectory as Model

    text = json.dumps(document, allow_nan=False)
    text.encode()
    Model.model_validate_json(text)
    assert document["steps"]
    assert all("message" in step for step in document["steps"])
    return document


def test_a_rollout_as_atif_keeps_text_calls_results_ids_and_numbers() -> None:
    document = checked(atif_document([stored()], run="my-run", model="org/model"))
    prompt, first, last = document["steps"]
    assert (prompt["source"], prompt["message"]) == ("user", "add 1")
    assert first["message"] == "add(1)"
    assert first["tool_calls"][0]["arguments"] == {"a": 1}
    assert first["observation"]["results"][0]["content"] == "1"
    assert first["observation"]["results"][0]["source_call_id"] == "c1"
    assert first["metrics"]["completion_token_ids"] == [10, 11]
    assert first["metrics"]["logprobs"] == [-0.5, -0.25]
    # What the model was given for its second turn: prompt, own turn, tool's turn.
    assert last["metrics"]["prompt_token_ids"] == [1, 2, 3, 10, 11, 12]
    assert last["metrics"]["completion_token_ids"] == [13]
    assert document["agent"]["model_name"] == "org/model"
    assert document["session_id"] == "my-run/train/3/1-t0-0"
    assert document["final_metrics"]["total_completion_tokens"] == 3
    extra = document["extra"]
    assert (extra["reward"], extra["advantage"], extra["termination"]) == (1.0, 0.5, "env_done")


def test_what_an_environment_says_by_itself_is_a_step_of_its_own() -> None:
    turns = (
        Turn(role="assistant", start=0, end=2, text="no call"),
        Turn(role="user", start=2, end=3, text="go on"),
        Turn(role="assistant", start=3, end=4, text="done"),
    )
    document = checked(atif_document([stored(turns=turns)]))
    said = [(step["source"], step["message"]) for step in document["steps"]]
    assert said[1:] == [("agent", "no call"), ("user", "go on"), ("agent", "done")]


def test_what_a_tool_turn_says_beside_its_results_is_not_lost() -> None:
    acted, answered, _ = trajectory().turns
    turns = (acted, dataclasses.replace(answered, end=4, text="1\nthink again"))
    steps = checked(atif_document([stored(turns=turns)]))["steps"]
    assert steps[-1]["message"] == "1\nthink again"


def test_calls_of_one_id_and_results_of_no_call_make_a_document_all_the_same() -> None:
    calls = tuple(ToolCall(id="", name="f", arguments={}, raw="") for _ in range(2))
    results = (ToolResult(text="a", call_id="stranger"), ToolResult(text="b", call_id=""))
    turns = (
        Turn(role="assistant", start=0, end=2, text="x", tool_calls=calls),
        Turn(role="tool", start=2, end=4, text="a b", tool_results=results),
    )
    step = checked(atif_document([stored(turns=turns)]))["steps"][1]
    ids = [call["tool_call_id"] for call in step["tool_calls"]]
    assert len(set(ids)) == 2
    assert "source_call_id" not in step["observation"]["results"][0]


def test_later_rows_of_a_rollout_repeat_context_and_say_so() -> None:
    rows = [stored(row_index=n, prompt_text=f"prompt {n}") for n in range(2)]
    steps = checked(atif_document(rows))["steps"]
    prompts = [step for step in steps if step["message"].startswith("prompt")]
    assert [step.get("is_copied_context") for step in prompts] == [None, True]


def test_a_hostile_rollout_is_a_valid_document() -> None:
    document = checked(atif_document([hostile()], run=HOSTILE, model=HOSTILE))
    assert document["extra"]["reward"] is None


class Page(HTMLParser):
    """Elements of a page and what stands in them, as a browser would take them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.inside: dict[str, str] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.open = dict(attrs).get("id", tag)

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[self.open] = self.inside.get(self.open, "") + data

    def answers(self, name: str) -> list[dict]:
        held = json.loads(self.inside["held"])
        return [json.loads(self.inside[at]) for named, _, at in held if named == name]


def page_of(
    folder: Path, rows: list[StoredTrajectory], trained: Sequence[TrainedTokens] = ()
) -> tuple[str, Page]:
    """A page of a run of one step."""
    write_rows(folder / "trajectories" / "train" / "step_000003.parquet", rows)
    if trained:
        TokenStore(folder / "tokens").write(3, 0, trained, ranks=1)
    pieces = export_pieces(ExportFormat.HTML, rows, reader_of(folder))
    text = b"".join(pieces).decode()
    return text, Page(text)


def reader_of(folder: Path) -> RunReader:
    return RunReader(FoundRun(id=folder.name, path=folder))


def test_a_hostile_rollout_is_data_on_the_page(tmp_path: Path) -> None:
    """Fails if a text of the run can end the element it stands in, or add one of its own."""
    (tmp_path / "run.json").write_text(json.dumps({"model": HOSTILE, "agentrl": HOSTILE}))
    plain, _ = page_of(tmp_path / "plain", [stored()])
    text, page = page_of(tmp_path, [hostile()])
    elements = [tag for tag, _ in page.tags]
    assert elements == [tag for tag, _ in Page(plain).tags]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not set(text) & set("\x1b\x00\u202e\ud800")
    (rollout,) = page.answers("rollout")
    assert "<script>alert(1)</script>" in rollout["rows"][0]["turns"][0]["text"]
    assert page.answers("contents")[0]["model"].startswith("</pre><script>")


def test_the_policy_of_a_page_names_its_script_and_its_style_and_nothing_else(
    tmp_path: Path,
) -> None:
    text, page = page_of(tmp_path, [stored()])
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    for name in ("script", "style"):
        digest = hashlib.sha256(page.inside[name].encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    runs = [a for tag, a in page.tags if tag == "script" and a.get("type") != "application/json"]
    assert len(runs) == 1
    assert not re.search(r"url\(|@import|/static/", text)
    links = [v for _, a in page.tags for k, v in a.items() if k in ("src", "href") and v]
    assert all(link.startswith(("#", "data:image/")) for link in links)


def test_tokens_on_a_page_say_whether_and_how_they_were_trained(tmp_path: Path) -> None:
    row = stored()
    trained = TrainedTokens(
        group_id=row.trajectory.group_id, rollout_id=row.trajectory.rollout_id, row_index=0,
        updates=1, trained=(True, False), old_log_probs=(-0.75, 0.0), log_probs=(-0.5, 0.0),
        entropy=(1.5, 0.0), advantages=(2.0, 0.0), correction=(1.0, 0.0), clip=(1, 0),
        loss=(0.1, 0.0),
    )  # fmt: skip
    _, page = page_of(tmp_path, [row], [trained])
    (tokens,) = page.answers("tokens")
    legend = tokens["why"]["legend"]
    assert [legend[code] for code in tokens["why"]["codes"]][3:] == [
        "trained", "masked: not in the loss", "environment", "masked: not in the loss",
    ]  # fmt: skip
    assert tokens["gap"][3] == -0.25
    assert tokens["clip"][3:] == [1, None, None, None]


def test_damaged_tokens_do_not_hide_the_turns_of_a_rollout(tmp_path: Path) -> None:
    path = TrajectoryStore(tmp_path / "trajectories").path(3, "train")
    path.parent.mkdir(parents=True)
    table = encode([stored()])
    mask = pa.array([[1, 1]], SCHEMA.field("response_mask").type)
    table = table.set_column(SCHEMA.get_field_index("response_mask"), "response_mask", mask)
    pq.write_table(table.replace_schema_metadata({"agentrl.schema_version": "1"}), path)
    pieces = export_pieces(ExportFormat.HTML, [stored()], reader_of(tmp_path))
    page = Page(b"".join(pieces).decode())
    assert len(page.answers("rollout")) == 1
    assert page.answers("tokens") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('import * as x from "./b.js";\n', "import \\* as x"),
        ("export default function () {}\n", "export default function"),
        ('const later = import("./b.js");\n', "import"),
        ('import { a } from "./a.js";\n', "a.js -> a.js"),
    ],
)
def test_a_module_that_cannot_be_put_into_a_page_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.js").write_text(text)
    with pytest.raises(ValueError, match=words):
        bundle(tmp_path, "a.js")


def test_rows_of_a_rollout_that_are_stored_apart_come_together(tmp_path: Path) -> None:
    rows = [stored(rollout_id=name, row_index=n) for n, name in ((0, "a"), (0, "b"), (1, "a"))]
    lines = b"".join(export_pieces(ExportFormat.ATIF, rows, reader_of(tmp_path))).splitlines()
    ids = [json.loads(line)["trajectory_id"] for line in lines]
    assert ids == ["a", "b"]


@pytest.mark.parametrize("format", list(ExportFormat))
def test_every_rollout_of_a_real_run_is_exported(
    format: ExportFormat, recorded_run: Path, tmp_path: Path
) -> None:
    store = TrajectoryStore(recorded_run / "trajectories")
    rows = list(store.read())
    output = tmp_path / "out"
    words = ["export", str(recorded_run), "-o", str(output), "--format", format]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.stdout.startswith(f"{len(rows)} trajectories in")
    if format is ExportFormat.PARQUET:
        copy = tmp_path / "run" / "trajectories" / "train" / "step_000000.parquet"
        copy.parent.mkdir(parents=True)
        shutil.copy(output, copy)
        assert list(TrajectoryStore(tmp_path / "run" / "trajectories").read()) == rows
    elif format is ExportFormat.HTML:
        page = Page(output.read_text())
        assert len(page.answers("rollout")) == len(rows)
        assert len(page.answers("tokens")) == len(rows)
        assert len(page.answers("contents")[0]["rollouts"]) == len(rows)
        assert any("<script>alert('x')</script>" in text for text in page.inside.values()) is False
    else:
        found = [json.loads(line) for line in output.read_bytes().splitlines()]
        assert len(found) == len(rows)
        if format is ExportFormat.ATIF:
            for document in found:
                checked(document)
            agent = found[0]["agent"]
            assert agent["model_name"].endswith("model")
            assert agent["version"] == agentrl.__version__


def test_one_rollout_is_exported_by_its_id(recorded_run: Path, tmp_path: Path) -> None:
    first = next(TrajectoryStore(recorded_run / "trajectories").read("train"))
    wanted = first.trajectory.rollout_id
    output = tmp_path / "one.html"
    words = ["export", str(recorded_run), "-o", str(output), "--rollout", wanted]
    CliRunner().invoke(app, words, catch_exceptions=False)
    (rollout,) = Page(output.read_text()).answers("rollout")
    assert rollout["rollout_id"] == wanted
    with pytest.raises(RunError, match="did you mean"):
        CliRunner().invoke(app, [*words, "--rollout", wanted + "0"], catch_exceptions=False)
