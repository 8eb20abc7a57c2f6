"""A teacher behind a real HTTP server: the numbers of its model, retries, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.batch.records import MicroBatch
from agentrl.config.distill import ServedTeacher
from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError, TrainError
from agentrl.models.source import load_tokenizer
from agentrl.train.distill import teacher_server
from agentrl.train.distill.records import TeacherRow
from agentrl.train.distill.teacher_server import TeacherServer, read_row
from tests.runtime.tiny_project import write_model
from tests.train.distill.scripted_teacher import ScriptedTeacher, prompt_logprobs, serving
from tests.train.tiny_llama import VOCABULARY, make_groups, make_step, replaced, tiny_model


def micros(*, shared: bool = False) -> tuple[MicroBatch, ...]:
    return make_step(make_groups(), prefix_sharing=shared).updates[0].micro_batches


def server_of(teacher: ScriptedTeacher, *, top_k: int, **keys: Any) -> TeacherServer:
    section = ServedTeacher(url=teacher.url, model="big", **keys)
    return TeacherServer(section, top_k=top_k, vocabulary=VOCABULARY)


def dense(model: Any, group_rows: dict[str, Any], name: str) -> torch.Tensor:
    """[R, V] by the library's own forward pass."""
    row = group_rows[name]
    with torch.no_grad():
        logits = model(torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    return torch.log_softmax(logits[len(row.prompt_ids) - 1 : -1].float(), -1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("top_k", [0, 5])
def test_rows_get_the_numbers_of_the_served_model(top_k: int, shared: bool) -> None:
    """Fails if entries are off by one token, rows of a shared prefix are mixed up, or the sampled
    token that comes besides is taken for one of the likeliest."""
    model = tiny_model(torch.float32, seed=1)
    rows = {row.rollout_id: row for group in make_groups() for row in group.trajectories}
    with serving(ScriptedTeacher(model)) as teacher:
        found = server_of(teacher, top_k=top_k).ask(micros(shared=shared), prompts=None)
    asked = [key for micro in micros() for key in micro.rows]
    assert sorted(found) == sorted(asked)
    assert all(body["prompt_logprobs"] == top_k for body in teacher.asked)
    for key in asked:
        table = dense(model, rows, key.rollout_id)
        row = rows[key.rollout_id]
        for place in np.flatnonzero(row.response_mask).tolist():
            assert found[key].sampled_R[place] == pytest.approx(
                float(table[place, row.response_ids[place]]), abs=1e-6
            )
            best = table[place].topk(top_k)
            assert found[key].ids_RK[place].tolist() == best.indices.tolist()
            assert np.allclose(found[key].log_probs_RK[place], best.values, atol=1e-6)


def test_a_server_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_server, "ROWS_AT_ONCE", 1)
    model = tiny_model(torch.float32, seed=1)
    with serving(ScriptedTeacher(model, fail=[503, 429])) as teacher:
        found = server_of(teacher, top_k=0).ask(micros(), prompts=None)
    assert len(found) == sum(len(micro.rows) for micro in micros())
    assert len(teacher.asked) == len(found) + 2


@pytest.mark.parametrize(
    ("statuses", "words"),
    [([404] * 99, r"status 404: busy"), ([503] * 99, r"status 503: busy")],
)
def test_a_server_that_fails_ends_the_step(statuses: list[int], words: str) -> None:
    """Fails if a teacher that cannot be asked counts as one that agrees."""
    with serving(ScriptedTeacher(tiny_model(torch.float32), fail=statuses)) as teacher:
        server = server_of(teacher, top_k=0)
        with pytest.raises(TrainError, match=rf"the teacher gave no log-probabilities: .*{words}"):
            server.ask(micros(), prompts=None)


def test_rows_of_another_temperature_are_refused() -> None:
    groups = make_groups(sizes=(2,))
    warm = [
        type(group)(
            group_id=group.group_id,
            task_id=group.task_id,
            trajectories=tuple(replaced(row, temperature=0.5) for row in group.trajectories),
        )
        for group in groups
    ]
    (update,) = make_step(warm).updates
    with serving(ScriptedTeacher(tiny_model(torch.float32))) as teacher:
        server = server_of(teacher, top_k=0)
        with pytest.raises(TrainError, match=r"temperature 0\.5, but a served teacher"):
            server.ask(update.micro_batches, prompts=None)
    assert not teacher.asked


def read(entries: Any, ids: list[int], *, top_k: int = 2, vocabulary: int = 61) -> TeacherRow:
    mask = np.ones(len(ids) - 1, dtype=np.bool_)
    return read_row(
        {"choices": [{"prompt_logprobs": entries}]}, np.array(ids), 1, mask,
        top_k=top_k, vocabulary=vocabulary, what="of a test",
    )  # fmt: skip


def broken(change: Any) -> Any:
    entries = prompt_logprobs(tiny_model(torch.float32), [3, 4, 5], 2)
    change(entries)
    return entries


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (None, r"got None, expected one for each of 3 tokens"),
        (broken(lambda e: e.pop()), r"got 2 entries, expected one for each of 3"),
        (broken(lambda e: e[1].pop("4")), r"at token 1 do not hold id 4"),
        (broken(lambda e: e[2].update({"5": {"logprob": math.nan, "rank": 60}})), r"of nan"),
        (broken(lambda e: e[2].update({"5": {"logprob": 0.5, "rank": 60}})), r"of 0\.5"),
        (broken(lambda e: e[2].update({"x": {}})), r"expected ids"),
    ],
)
def test_answers_that_lack_a_number_are_refused(entries: Any, words: str) -> None:
    """Fails if what is missing becomes a number."""
    with pytest.raises(ValueError, match=words):
        read(entries, [3, 4, 5])


def test_a_token_that_the_teacher_cannot_sample_is_minus_infinity() -> None:
    """Fails if vLLM's -9999 counts as a number, or stops the form that does not look at it."""
    entries = broken(lambda e: e[2].update({"5": {"logprob": -9999.0, "rank": 2}}))
    entries[2] = {key: e for key, e in entries[2].items() if key == "5" or e["rank"] == 1}
    row = read(entries, [3, 4, 5])
    assert row.ids_RK[1, 1] == 5
    assert row.log_probs_RK[1, 1] == -math.inf
    assert np.isfinite(row.log_probs_RK[0]).all()
    with pytest.raises(ValueError, match=r"id 5, which the policy sampled, .* -inf; serve a"):
        read(entries, [3, 4, 5], top_k=0)


def test_likely_tokens_that_the_policy_has_not_are_refused() -> None:
    entries = prompt_logprobs(tiny_model(torch.float32), [3, 4, 5], 2)
    with pytest.raises(ValueError, match=r"of the 2 likeliest tokens below id 2, which the policy"):
        read(entries, [3, 4, 5], vocabulary=2)


async def test_the_tokenizer_and_the_length_are_compared(tmp_path: Path) -> None:
    """Fails if a server of another tokenizer is taken: it would judge other texts."""
    ours = load_tokenizer(ModelSection(path=str(write_model(tmp_path / "ours"))))
    other = load_tokenizer(ModelSection(path=str(write_model(tmp_path / "other"))))
    other.add_tokens(["add"])
    model = _small(tmp_path / "ours")
    with serving(ScriptedTeacher(model, tokenizer=ours, context=64)) as teacher:
        section = ServedTeacher(url=teacher.url, model="big")
        server = TeacherServer(section, top_k=4, vocabulary=258)
        await server.check(ours, context=63)
        with pytest.raises(ConfigError, match=r"takes 64 tokens, but a row may have 64"):
            await server.check(ours, context=64)
        teacher.tokenizer = other
        with pytest.raises(ConfigError, match=r"another tokenizer than the policy: of 'def add"):
            await server.check(ours, context=63)


def _small(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    section = ServedTeacher(url="http://localhost:1/v1", model="m", api_key_env="TEACHER_KEY")
    with pytest.raises(ConfigError, match=r"algorithm\.distill\.teacher: .*TEACHER_KEY"):
        TeacherServer(section, top_k=0, vocabulary=9)
