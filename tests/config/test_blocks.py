"""Every algorithm says which blocks it is; every block key shows in the line of its block."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli.config import app
from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.blocks import describe_blocks
from agentrl.config.presets import PRESETS
from agentrl.config.stored import translate
from agentrl.config.training import TrainSection


def blocks(**values: Any) -> dict[str, str]:
    lines = describe_blocks(AlgorithmSection(**values).resolved(horizon=48))
    return {line[0]: line[14:] for line in lines}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_prints_all_blocks(preset: str) -> None:
    found = blocks(preset=preset)
    assert list(found) == list("ABCDEFG")
    assert "?" not in "".join(found.values())
    assert "{" not in "".join(found.values())


def test_presets_differ_where_their_formulas_do() -> None:
    texts = {preset: tuple(blocks(preset=preset).values()) for preset in PRESETS}
    assert len(set(texts.values())) == len(PRESETS)
    assert "(R - mean of the group) / (std (ddof 1) + 1e-06)" in texts["grpo"][0]
    assert "/ (rollouts * 48 tokens)" in texts["dr_grpo"][4]
    assert "clip(s, 0.9997, 1.0004)" in texts["gspo"][4]
    assert "clip(r, 0, 5)" in texts["cispo"][4]
    assert "clip(r, 0.8, 1.28)" in texts["dapo"][4]
    assert "mean over all tokens of the update" in texts["dapo"][4]


MEANS = "seq-mean-token-mean"
GSPO = (3e-4, 4e-4, MEANS, "rollout")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"policy_loss": "gspo"}, GSPO),
        ({"policy_loss": "gspo", "preset": "ppo"}, GSPO),
        ({"policy_loss": "gspo", "preset": "dapo"}, GSPO),
        ({"policy_loss": "gspo", "eps_clip_low": 0.1}, (0.1, *GSPO[1:])),
        ({"policy_loss": "gspo", "loss_agg_mode": "token-mean"},
         (*GSPO[:2], "token-mean", "rollout")),
        ({"is_correction_type": "tis"}, (0.2, 0.2, "seq-mean-token-sum-norm", "recompute")),
        ({"is_correction_type": "icepop", "policy_loss": "gspo"}, (*GSPO[:3], "recompute")),
        ({"policy_loss": "cispo"}, (1.0, 4.0, "token-mean", "rollout")),
        ({"policy_loss": "sapo"}, (0.2, 0.2, MEANS, "rollout")),
        ({"policy_loss": "ppo_clip", "preset": "gspo"}, (0.2, 0.2, MEANS, "rollout")),
        ({"policy_loss": "ppo_clip", "preset": "dapo"}, (0.2, 0.28, "token-mean", "rollout")),
        ({"policy_loss": "tis_reinforce", "preset": "cispo"},
         (0.2, 0.2, "token-mean", "recompute")),
        ({"policy_loss": "my.py:mine", "preset": "cispo"}, (1.0, 4.0, "token-mean", "rollout")),
    ],
)  # fmt: skip
def test_a_policy_loss_brings_its_own_values(values: dict[str, Any], expected: Any) -> None:
    """Fails where a loss beside another preset has the bounds of that preset (it had)."""
    found = AlgorithmSection(**values).resolved(horizon=8)
    keys = (found.eps_clip_low, found.eps_clip_high, found.loss_agg_mode, found.old_log_probs)
    assert keys == expected


def test_values_of_a_loss_are_named_unless_they_are_set() -> None:
    named = AlgorithmSection(
        policy_loss="gspo", eps_clip_low=0.1, is_correction_type="seq-mask-tis"
    )
    assert named.brought_along() == [
        "policy_loss gspo beside preset dr_grpo brings eps_clip_high 0.0004, loss_agg_mode "
        "seq-mean-token-mean; a key that is set wins",
        "is_correction_type seq-mask-tis beside preset dr_grpo brings old_log_probs recompute; a "
        "key that is set wins",
    ]
    own = AlgorithmSection(preset="gspo", policy_loss="gspo")
    assert AlgorithmSection().brought_along() == own.brought_along() == []
    with pytest.raises(ValueError, match="but old_log_probs is 'rollout'; set it to 'recompute'"):
        AlgorithmSection(is_correction_type="tis", old_log_probs="rollout")


def test_a_stored_run_keeps_the_values_that_it_began_with() -> None:
    """A run of an older version, whose loss took those of the preset, and one of today."""
    older = {"preset": "grpo", "policy_loss": "gspo", "eps_clip_low": None, "eps_clip_high": 0.5}
    read = AlgorithmSection(**translate({"algorithm": older})["algorithm"])
    assert (read.eps_clip_low, read.eps_clip_high) == (0.2, 0.5)
    today = AlgorithmSection(preset="grpo", policy_loss="gspo")
    again = translate({"algorithm": today.model_dump(mode="json")})["algorithm"]
    assert AlgorithmSection(**again) == today
    assert today.eps_clip_low == 3e-4


@pytest.mark.parametrize(
    ("values", "block", "words"),
    [
        ({"advantage_estimator": "grpo"}, "A", "(ddof 1) + 1e-06"),
        ({"kl_coef": 0.1}, "B", "0.1 * KL (k3), added to the loss"),
        ({"entropy_coef": 0.01}, "E", "; less 0.01 * entropy of the policy, with the same mean"),
        ({"preset": "ppo", "kl_coef": 0.1}, "B", "0.1 * KL (k1), taken off the reward"),
        ({"kl_coef": 0.1, "kl_target": 0.05}, "B", "steers it to 0.05"),
        ({"kl_coef": 0.1, "kl_target": [0.05, 0.2]}, "B", "keeps it in [0.05, 0.2]"),
        (
            {"kl_coef": 0.1, "reference_update": {"every_steps": 9, "polyak": 0.6}},
            "B",
            "every 9 steps",
        ),
        ({"preset": "ppo", "lam": 0.5}, "C", "lambda 0.5"),
        ({"turn_rewards": "return_to_go", "gamma": 0.5}, "C", "gamma 0.5 per turn"),
        ({"preset": "reinforce++", "gamma": 0.5}, "C", "gamma 0.5 per action token"),
        ({"whiten_advantages": "mean"}, "D", "A - mean over all"),
        ({"dual_clip": 3.0}, "E", "at most 3 |A|"),
        ({"policy_loss": "my.losses:mine"}, "E", "my.losses:mine; r = p"),
        ({"old_log_probs": "decoupled"}, "E", "weighted by p_old / p_sampler"),
        ({"old_log_probs": "recompute", "is_correction_type": "tis"}, "E", "clip(p_old / p_s"),
        ({"preset": "tis_reinforce"}, "E", "p_sampler, 0, 2)"),
        ({"preset": "tis_reinforce", "old_log_probs": "decoupled"}, "E", "p_sampler, 0, 2)"),
        ({"preset": "tis_reinforce", "importance_level": "sequence"}, "E", "of each sequence"),
    ],
)
def test_a_key_shows_in_its_block(values: dict[str, Any], block: str, words: str) -> None:
    assert words in blocks(**values)[block]


def test_critic_and_updates_come_from_their_sections() -> None:
    lines = describe_blocks(
        AlgorithmSection(preset="ppo").resolved(horizon=1),
        critic=CriticSection(path="rm", warmup_steps=3, value_clip=None),
        train=TrainSection(epochs_per_batch=2, minibatches=4),
    )
    assert lines[5] == "F critic      squared error of V; from rm; alone for 3 steps"
    assert lines[6].endswith("2 passes over the rollouts of a step, 4 updates each, adamw")


def test_config_show_ends_with_the_blocks_and_is_still_a_run_file(tmp_path: Any) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env: {target: a.py:A}\ndataset: {source: t.jsonl}\nalgorithm: {preset: rloo}")
    result = CliRunner().invoke(app, ["show", str(file)], catch_exceptions=False)
    assert "\n# A baseline    rloo: R - mean of the others of the group\n" in result.stdout
    assert yaml.safe_load(result.stdout)["algorithm"]["preset"] == "rloo"
