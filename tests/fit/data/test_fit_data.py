"""What a fit reads: rows into tokens, and one clear message for what cannot be trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.batch.examples import CHOSEN
from agentrl.batch.records import PackedBatch
from agentrl.batch.update_terms import CENTERED as CENTERED_ROW
from agentrl.config.load import FIT_FILE, RUN_FILE
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.errors import AgentrlError, ConfigError, DataError, RunError
from agentrl.fit.launch import FitSets, load_fit_sets
from agentrl.fit.updates import FitUpdates
from tests.data.records import group, trajectory
from tests.fit.fit_project import conversations, pairs, write_fit, write_rows
from tests.runtime.tiny_project import write_model, write_project


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    (tmp_path / "model").symlink_to(model)
    return tmp_path


def loaded(path: Path, *overrides: str) -> FitSets:
    return load_fit_sets(FIT_FILE.load(path, overrides), base=path.parent)


def spoken(folder: Path, example: Any, mask: int) -> str:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    (answer,) = example.answers
    kept = [i for i, m in zip(answer.ids, answer.mask, strict=True) if m == mask]
    return tokenizer.decode(kept)


def test_calls_of_tools_are_learned_and_their_results_are_not(folder: Path) -> None:
    sets = loaded(write_fit(folder, "sft"), "chat.tool_parser=hermes")
    first = sets.train.examples[0]
    assert first.id == "train-c0"
    assert '"name": "add"' in spoken(folder, first, 1)
    assert "it is 0" in spoken(folder, first, 1)
    assert "<|im_start|>tool\n0" in spoken(folder, first, 0)
    assert {example.id for example in sets.evals["held"].examples} == {
        f"held/held-c{number}" for number in range(3)
    }


def test_pairs_keep_their_numbers(folder: Path) -> None:
    sets = loaded(write_fit(folder, "rm"))
    for example, row in zip(sets.train.examples, pairs(), strict=True):
        assert example.margin == row["margin"]
        assert example.label_probability == row["label_probability"]
        assert example.weight == 1


def stored_run(folder: Path, *, token: int = 7) -> Path:
    """A run with rollouts of rewards 0 and 1, and one of an evaluation."""
    run = folder / "a-run"
    run.mkdir()
    (run / "config.yaml").write_text("")
    (run / "run.json").write_text(json.dumps({"base": str(folder)}))
    store = TrajectoryStore(run / "trajectories")
    for kind, steps in (("train", (1, 2)), ("eval/held", (0,))):
        for step in steps:
            rows = (
                trajectory(
                    task_id="t",
                    group_id=f"{kind}{step}",
                    rollout_id=f"{step}-{n}",
                    prompt_ids=(1, 2),
                    response_ids=(10 * step + 20, n, token, 13),
                    reward=float(n % 2),
                    score=float(n % 2),
                )
                for n in range(4)
            )
            store.write(step, kind, [group(*rows)])
    return run


@pytest.mark.parametrize(
    ("overrides", "count"),
    [((), 8), (("data.min_score=1",), 4), (("data.split=eval/held",), 4), (("data.limit=3",), 3)],
)
def test_rollouts_of_a_run(folder: Path, overrides: tuple[str, ...], count: int) -> None:
    """Fails if a bad rollout passes, or another kind of rollouts is taken than was asked for."""
    stored_run(folder)
    path = write_fit(folder, "sft", data__source="run:a-run")
    sets = loaded(path, *overrides)
    assert len(sets.train.examples) == count
    assert all(example.prompt_ids == (1, 2) for example in sets.train.examples)
    if "data.min_score=1" in overrides:
        assert "4 left out: a score below 1" in sets.train.text()


def equal_pairs() -> list[dict[str, Any]]:
    return [{**row, "rejected": row["chosen"]} for row in pairs()]


def ties() -> list[dict[str, Any]]:
    return [{"prompt": "a", "completions": ["b", "c"], "scores": [1, 1]} for _ in range(3)]


def with_value(name: str, value: Any) -> list[dict[str, Any]]:
    rows = pairs()
    rows[2][name] = value
    return rows


def prompts_that_differ() -> list[dict[str, Any]]:
    def said(asked: str, text: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": text}]

    return [{"chosen": said("one", "a"), "rejected": said("two", "b")}]


BAD_PAIRS = {
    "empty": ([], "no rows"),
    "equal": (equal_pairs(), "7: both answers are the same tokens"),
    "ties": (ties(), "3: neither answer is the better one"),
    "nan margin": (with_value("margin", "nan"), r"line 3.*margin is 'nan'"),
    "probability": (with_value("label_probability", 1.5), r"line 3.*is 1\.5; expected one in \[0"),
    "weight": (with_value("weight", -1), r"line 3.*weight is -1"),
    "prompts": (prompts_that_differ(), r"line 1"),
    "conversations": (conversations(), r"line 1.*messages"),
    "long": (pairs(prompt="x" * 600), r"7: too long for train\.micro_batch_tokens \(512\)"),
}


@pytest.mark.parametrize("kind", ["dpo", "rm"])
@pytest.mark.parametrize("case", BAD_PAIRS)
def test_bad_pairs_are_one_message(folder: Path, case: str, kind: str) -> None:
    rows, message = BAD_PAIRS[case]
    path = write_fit(folder, kind)
    write_rows(folder / "train.jsonl", rows)
    with pytest.raises(DataError, match=message):
        loaded(path)


BAD_CONVERSATIONS = {
    "empty": ([], "no rows"),
    "pairs": (pairs(), r"line 1.*two answers to compare"),
    "silent": ([{"messages": [{"role": "user", "content": "a"}]}], "no message of the assistant"),
    "one bad": ([*conversations(), {"messages": "text"}], "line 8"),
}


@pytest.mark.parametrize("case", BAD_CONVERSATIONS)
def test_bad_conversations_are_one_message(folder: Path, case: str) -> None:
    rows, message = BAD_CONVERSATIONS[case]
    path = write_fit(folder, "sft")
    write_rows(folder / "train.jsonl", rows)
    with pytest.raises(DataError, match=message):
        loaded(path)


OWN_PAIRS = """
from agentrl.types import Completion, Message, PreferencePair

def say(text):
    return Completion(messages=(Message(role="assistant", content=text),))

def make(split, **values):
    return [PreferencePair(id="1", prompt=(Message(role="user", content="a"),), chosen=say("b"),
                           rejected=say("c"), **values)]
"""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("{margin: .nan}", r"example '1': margin is nan; expected a finite number"),
        ("{label_probability: -0.5}", r"label_probability is -0\.5; .* in \[0, 1\]"),
        ("{weight: .inf}", "weight is inf"),
    ],
)
def test_numbers_of_a_function_are_checked(folder: Path, argument: str, message: str) -> None:
    (folder / "own.py").write_text(OWN_PAIRS)
    path = write_fit(folder, "rm", data__source="own.py:make")
    assert len(loaded(path).train.examples) == 1
    with pytest.raises(DataError, match=message):
        loaded(path, f"data.args={argument}")


def test_a_margin_that_the_loss_needs_is_missed_before_training(folder: Path) -> None:
    path = write_fit(folder, "rm", objective__margin_scale=0.5)
    assert loaded(path).train.examples
    write_rows(folder / "held.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(DataError, match=r"no margin, which .* with eval\.datasets\.held\.columns"):
        loaded(path)


CENTERED = {"objective__center_set_coef": 0.1, "objective__center_data": {"source": "set.jsonl"}}


@pytest.mark.parametrize(("rows", "count"), [(pairs(3), 6), (conversations(3), 3)])
def test_rewards_are_centered_on_any_answers(
    folder: Path, rows: list[dict[str, Any]], count: int
) -> None:
    """Fails if one answer of a pair is lost, or a margin is missed in answers that have none."""
    path = write_fit(folder, "rm", objective__margin_scale=0.5, **CENTERED)
    write_rows(folder / "set.jsonl", rows)
    sets = loaded(path, "chat.tool_parser=hermes")
    assert sets.centered is not None
    assert len(sets.centered.examples) == count
    assert all(len(example.answers) == 1 for example in sets.centered.examples)
    assert all(example.id.startswith("center_data/") for example in sets.centered.examples)
    # Fails if the loss of an evaluation lacks the part, or has other answers each time.
    updates = FitUpdates(FIT_FILE.load(path, ()), sets)
    evaluated, first = updates.evaluation("held"), updates.step(0)
    assert evaluated.trained.global_sequences == 3
    assert rows_of(evaluated.trained, CENTERED_ROW) == rows_of(first.trained, CENTERED_ROW)
    assert evaluated.measured is not None
    assert len(rows_of(evaluated.measured, CENTERED_ROW)) == count
    assert len(rows_of(evaluated.trained, CHOSEN)) == 3


def rows_of(update: PackedBatch, kind: int) -> set[str]:
    keys = (key for micro in update.micro_batches for key in micro.rows)
    return {key.rollout_id for key in keys if key.row_index == kind}


def test_a_set_that_is_neither_pairs_nor_conversations(folder: Path) -> None:
    path = write_fit(folder, "rm", **CENTERED)
    write_rows(folder / "set.jsonl", [{"text": "plain"}])
    with pytest.raises(
        DataError, match=r"objective\.center_data\.source '\S+/set\.jsonl' holds neither"
    ):
        loaded(path)


def test_rollouts_of_a_run_center_rewards(folder: Path) -> None:
    stored_run(folder)
    path = write_fit(folder, "rm", **CENTERED)
    sets = loaded(path, f"objective.center_data.source=run:{folder}/a-run")
    assert sets.centered is not None
    assert len(sets.centered.examples) == 8


def test_ids_of_another_model(folder: Path) -> None:
    """Fails if training would read behind the end of the embeddings."""
    stored_run(folder, token=5000)
    path = write_fit(folder, "sft", data__source="run:a-run")
    with pytest.raises(DataError, match=r"token 5000 is not one of the 258 that model\.path knows"):
        loaded(path)


def other_tokens(folder: Path) -> Path:
    """The same model with two tokens exchanged."""
    other = folder / "other"
    write_model(other)
    file = other / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    file.write_text(json.dumps(content))
    return other


SETTINGS = {
    "unknown loss": ("dpo", "objective.loss=sigmod", ConfigError, "did you mean 'sigmoid'"),
    "unknown objective": ("dpo", "objective.kind=dppo", ConfigError, "did you mean 'dpo'"),
    "unknown key": ("sft", "data.example_per_step=3", ConfigError, "did you mean 'examples_per_st"),
    "another kind's key": ("sft", "objective.beta=0.1", ConfigError, "beta belongs to"),
    "not finite": ("dpo", "objective.beta=.nan", ConfigError, "beta"),
    "no such file": ("dpo", "data.source=trian.jsonl", AgentrlError, r"trian\.jsonl"),
    "no such column": ("dpo", "data.columns={chosen: good}", AgentrlError, "good"),
    "rollouts for pairs": ("dpo", "data.source=run:x", ConfigError, r"prefs make \S+/x --out"),
    "no such run": ("sft", "data.source=run:x", RunError, "x"),
    "scores of a file": ("sft", "data.min_score=1", ConfigError, "belongs to sources run:FOLDER"),
    "no such model": ("sft", "model.path=./nowhere", ConfigError, "nowhere"),
    "no such reference": ("dpo", "objective.reference=./no", ConfigError, r"objective\.reference"),
    "other vocabulary": (
        "dpo",
        "objective.reference=OTHER",
        ConfigError,
        r"another vocabulary: tok",
    ),
    "no such sink": ("sft", "log.sinks={nosuch: {}}", ConfigError, "nosuch"),
    "epochs of RL": ("sft", "train.epochs_per_batch=2", ConfigError, "a fit makes one update"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_cannot_be_used_are_one_message(folder: Path, case: str) -> None:
    kind, override, error, message = SETTINGS[case]
    path = write_fit(folder, kind)
    if "OTHER" in override:
        override = override.replace("OTHER", str(other_tokens(folder)))
    with pytest.raises(error, match=message):
        loaded(path, override)


def test_a_file_of_the_other_command_is_one_sentence(folder: Path) -> None:
    run, fit = write_project(folder), write_fit(folder, "dpo")
    with pytest.raises(ConfigError, match="is a run file, of `agentrl train`") as caught:
        FIT_FILE.load(run)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="is a file of `agentrl fit`") as caught:
        RUN_FILE.load(fit)
    assert "\n" not in str(caught.value)
