"""New and old pairs in one file: as many of both, and nothing that is held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agentrl.chat import build_chat
from agentrl.config import load_config
from agentrl.fit.data.preferences.files import PairWriter
from agentrl.fit.data.preferences.from_runs import is_held_out
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.refresh.jobs import RefreshJob
from agentrl.fit.refresh.origin import OldPairs
from agentrl.fit.refresh.pool import write_mixed
from agentrl.models.source import load_tokenizer
from agentrl.types import Completion, PreferencePair
from tests.fit.fit_project import pairs, write_rows
from tests.runtime.tiny_project import write_project


def token_pairs(name: str, tasks: Sequence[str], first: int) -> list[PreferencePair]:
    return [
        PreferencePair(
            id=f"{name}/{i}", prompt_ids=(first + i,), task_id=task,
            chosen=Completion(ids=(5, first + i), mask=(1, 1)),
            rejected=Completion(ids=(6,), mask=(1,)),
        )
        for i, task in enumerate(tasks)
    ]  # fmt: skip


def write_pairs(path: Path, made: Sequence[PreferencePair]) -> Path:
    with PairWriter(path) as writer:
        for pair in made:
            writer.write(pair)
    return path


def job_of(folder: Path, old: OldPairs | None, *earlier: Path) -> RefreshJob:
    return RefreshJob(
        folder=str(folder), step=4, current="", origin="", base=str(folder), models="", version=1,
        old=old, earlier=tuple(map(str, earlier)), held_out=0.3, seed=0, steps=1,
        learning_rate=1e-3, device="cpu", longest=64, needs_scale=True,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pairs(tmp_path / "new.parquet", token_pairs("new", [f"n{i}" for i in range(6)], 100))
    write_pairs(tmp_path / "heldout.parquet", token_pairs("held", ["h0", "h1"], 120))
    return tmp_path


def chat_of(folder: Path):
    config = load_config(write_project(folder))
    return build_chat(load_tokenizer(config.model), config.chat)


def test_there_are_as_many_old_pairs_as_new_ones(folder: Path) -> None:
    """Fails if all old pairs are taken, or always the same ones; messages become tokens."""
    write_rows(folder / "old.jsonl", pairs(40))
    old = OldPairs(source="old.jsonl", base=str(folder))
    chat, drawn = chat_of(folder), []
    for step in (4, 8):
        # As the child reads it.
        sent = json.dumps(asdict(replace(job_of(folder, old), step=step)))
        assert write_mixed(RefreshJob.from_json(json.loads(sent)), chat) == 6
        mixed = load_pairs(str(folder / "train.parquet"))
        assert [pair.id for pair in mixed[:6]] == [f"new/{i}" for i in range(6)]
        assert all(pair.id.startswith("old/") and pair.prompt_ids for pair in mixed[6:])
        assert len(mixed) == 12
        drawn.append({pair.id.rpartition("/")[2] for pair in mixed[6:]})
    assert drawn[0] != drawn[1]


def test_earlier_refreshes_are_in_the_pool_and_held_out_tasks_are_not(folder: Path) -> None:
    """Fails if a pair of a held-out task or prompt is trained on by another way."""
    names = [f"t{i}" for i in range(20)]
    kept = [name for name in names if not is_held_out(name, 0.3, 0)]
    assert 0 < len(kept) < 20
    earlier = write_pairs(folder / "earlier.parquet", token_pairs("e", names, 200))
    same_prompt = write_pairs(folder / "prompt.parquet", token_pairs("p", ["", ""], 120))
    job = job_of(folder, None, earlier, same_prompt)
    write_pairs(folder / "new.parquet", token_pairs("new", [f"n{i}" for i in range(30)], 300))
    assert write_mixed(job, chat_of(folder)) == len(kept)
    old = load_pairs(str(folder / "train.parquet"))[30:]
    assert sorted(pair.task_id for pair in old) == sorted(kept)


def test_without_old_pairs_new_ones_are_alone(folder: Path) -> None:
    assert write_mixed(job_of(folder, None), chat_of(folder)) == 0
    assert len(load_pairs(str(folder / "train.parquet"))) == 6
