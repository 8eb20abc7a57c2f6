"""Teachers of a config: refused before a model is loaded, with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.errors import ConfigError
from agentrl.models.source import load_tokenizer
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.teacher import teacher as preflight_teacher
from agentrl.runtime.assembly.teacher import ask_server, check_teacher, teacher_bytes
from tests.runtime.tiny_project import resize_ids, write_model, write_project


def project(folder: Path, teacher: dict[str, Any], **changes: Any) -> Path:
    return write_project(folder, algorithm={"distill": {"teacher": teacher}}, **changes)


def check(path: Path) -> str:
    plan = plan_run(load_config(path), path.parent).trainer
    return check_teacher(plan, tokenizer=load_tokenizer(plan.model))


def test_a_folder_beside_the_run_file_is_found(tmp_path: Path) -> None:
    write_model(tmp_path / "big", seed=1)
    path = project(tmp_path, {"path": "big"})
    assert check(path) == f"{tmp_path / 'big'} beside the policy, top_k 0, coef 1"
    size = (tmp_path / "big" / "model.safetensors").stat().st_size
    assert teacher_bytes(plan_run(load_config(path), tmp_path).trainer) == size


def test_without_training_there_is_no_teacher(tmp_path: Path) -> None:
    path = project(tmp_path, {"path": "nowhere/at/all"}, train={"steps": 0})
    assert check(path) == "no teacher"


def _other_vocabulary(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(document))


def _short(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "max_position_embeddings": 100}))


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_other_vocabulary, r"another vocabulary than the policy: token '[ab]' is id"),
        (_short, r"reads 100 tokens, but a row may have 128"),
        (_no_config, r"algorithm\.distill\.teacher\.path .* is a folder without config\.json"),
    ],
)
def test_a_teacher_that_cannot_be_used_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    damage(write_model(tmp_path / "big", seed=1))
    with pytest.raises(ConfigError, match=words):
        check(project(tmp_path, {"path": "big"}))


def test_a_teacher_that_lacks_ids_of_the_policy_is_refused(tmp_path: Path) -> None:
    """Fails if a padding id that the policy samples reaches a teacher that has none; and if one of
    more ids is refused, too."""
    write_model(tmp_path / "big", seed=1)
    path = project(tmp_path, {"path": "big"})
    resize_ids(tmp_path / "model", 264)
    with pytest.raises(ConfigError, match=r"/big' has 258 token ids .* the policy has 264"):
        check(path)
    resize_ids(tmp_path / "big", 272)
    assert check(path) == f"{tmp_path / 'big'} beside the policy, top_k 0, coef 1"
    resize_ids(tmp_path / "big", 257)
    with pytest.raises(ConfigError, match=r"/big' reads 257 token ids .* is id 257 for the policy"):
        check(path)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"teacher\.path '[^']*/big' does not exist"):
        check(project(tmp_path, {"path": "./big"}))


def test_more_likeliest_tokens_than_there_are(tmp_path: Path) -> None:
    write_model(tmp_path / "big", seed=1)
    distill = {"teacher": {"path": "big"}, "top_k": 300}
    path = write_project(tmp_path, algorithm={"distill": distill})
    with pytest.raises(ConfigError, match=r"top_k is 300, but '[^']*/big' has 258 tokens"):
        check(path)


async def test_preflight_names_the_task_without_a_hint(tmp_path: Path) -> None:
    from agentrl.chat import build_chat
    from agentrl.errors import DataError
    from agentrl.runtime.assembly.parts import load_task_sets

    path = project(tmp_path, {"kind": "hint", "hint": "It is {word}."})
    config = load_config(path)
    tokenizer = load_tokenizer(config.model)
    found = PreflightFacts(
        tokenizer=tokenizer,
        chat=build_chat(tokenizer, config.chat),
        tasks=load_task_sets(plan_run(config, tmp_path).tasks),
    )
    with pytest.raises(DataError, match=r"names 'word', but task train-0 has no such column"):
        await preflight_teacher(plan_run(config, tmp_path).trainer, found)
    fixed = load_config(project(tmp_path, {"kind": "hint", "hint": "Use vowels."}))
    text = await preflight_teacher(plan_run(fixed, tmp_path).trainer, found)
    assert text == "the policy, with a hint, top_k 0, coef 1 of at most 11 characters"


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    from agentrl.errors import ServedModelError

    served = {"kind": "served", "url": "http://127.0.0.1:9/v1", "model": "big"}
    path = project(tmp_path, served)
    plan = plan_run(load_config(path), tmp_path).trainer
    assert check(path) == "big at http://127.0.0.1:9/v1, top_k 0, coef 1"
    with pytest.raises(
        ServedModelError, match=r"'big' at http://127\.0\.0\.1:9/tokenize could not"
    ):
        await ask_server(plan, load_tokenizer(plan.model))
