"""Distillation in a run file: what goes together, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.blocks import describe_blocks
from agentrl.config.distill import hint_columns
from agentrl.errors import ConfigError

TEACHER = {"path": "runs/quickstart"}
SERVED = {"kind": "served", "url": "http://localhost:8000/v1", "model": "big"}


def run_file(distill: dict[str, Any], **sections: Any) -> dict[str, Any]:
    algorithm = {"distill": distill, **sections.pop("algorithm", {})}
    return {
        "env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}, "algorithm": algorithm,
        **sections,
    }  # fmt: skip


def test_a_path_alone_is_a_checkpoint() -> None:
    distill = parse_config(run_file({"teacher": TEACHER})).algorithm.distill
    assert distill is not None
    assert distill.teacher.kind == "checkpoint"
    assert (distill.top_k, distill.coef, distill.with_reward) == (0, 1.0, False)


@pytest.mark.parametrize(
    ("distill", "sections", "words"),
    [
        ({"teacher": {"url": "http://x"}}, {}, r"url belongs to .*kind: served"),
        ({"teacher": {"kind": "hint", "hint": "{"}}, {}, r"cannot be filled in"),
        ({"teacher": {"kind": "hint", "hint": "{}"}}, {}, r"a place without a name"),
        ({"teacher": {"kind": "hint", "hint": " "}}, {}, r"is empty"),
        ({"teacher": {"kind": "oracle"}}, {}, r"valid: checkpoint, hint, served"),
        ({"teacher": TEACHER, "coef": 0}, {}, r"greater than 0"),
        ({"teacher": TEACHER}, {"algorithm": {"preset": "ppo"}}, r"trains a critic of rewards"),
        (
            {"teacher": TEACHER},
            {"algorithm": {"preset": "rloo", "kl_coef": 0.1}},
            r"kl_coef 0\.1 is taken off the rewards",
        ),
        ({"teacher": SERVED}, {"rollout": {"temperature": 0.7}}, r"at temperature 1 only"),
    ],
)
def test_what_does_not_go_together_is_refused(
    distill: dict[str, Any], sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(run_file(distill, **sections))


def test_a_critic_and_a_kl_in_the_reward_go_with_rewards() -> None:
    distill = {"teacher": TEACHER, "with_reward": True}
    for algorithm in ({"preset": "ppo"}, {"preset": "rloo", "kl_coef": 0.1}):
        assert parse_config(run_file(distill, algorithm=algorithm)).algorithm.distill is not None


def test_a_teacher_alone_compares_no_siblings() -> None:
    """Fails if groups of one are refused, although no baseline is formed of them."""
    alone = {"rollout": {"n_samples_per_prompt": 1}}
    assert parse_config(run_file({"teacher": TEACHER}, **alone)).rollout.n_samples_per_prompt == 1
    with pytest.raises(ConfigError, match="a group baseline needs at least 2"):
        parse_config(run_file({"teacher": TEACHER, "with_reward": True}, **alone))


def test_tokens_differ_in_their_advantage_only_in_the_sampled_form() -> None:
    """`gspo` takes another form of its ratio where tokens of a rollout differ."""
    sampled, exact = (
        AlgorithmSection(distill={"teacher": TEACHER, "top_k": k}).resolved(horizon=8)
        for k in (0, 4)
    )
    assert not sampled.one_advantage
    assert exact.one_advantage


@pytest.mark.parametrize(
    ("distill", "words"),
    [
        ({"teacher": TEACHER, "coef": 0.5}, "A of a token 0.5 (log p_teacher - log p); alone"),
        ({"teacher": SERVED, "top_k": 8, "with_reward": True}, "its 8 likeliest tokens"),
        ({"teacher": {"kind": "hint", "hint": "x"}}, "the policy now, with a hint"),
    ],
)
def test_the_block_of_a_teacher_is_described(distill: dict[str, Any], words: str) -> None:
    line = describe_blocks(AlgorithmSection(distill=distill).resolved(horizon=8))[-1]
    assert line.startswith("H teacher")
    assert words in line


def test_columns_of_a_hint() -> None:
    assert hint_columns("{a} {{x}} {label}: {a}") == ("a", "label", "a")
    assert hint_columns("none") == ()
