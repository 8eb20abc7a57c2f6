"""What `--dry-run` says of algorithm and rewards, and what a run notes when it begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command
from agentrl.runtime.checks.algorithm import doubts
from agentrl.runtime.launch import check_parts
from agentrl.types.finding import Finding, Status
from tests.preflight.check_lines import dry_run
from tests.runtime.tiny_project import write_project

FUNCTIONS = """
def short(trajectory, task, limit=10):
    return float(trajectory.num_action_tokens < limit)


def ours(inputs):
    raise NotImplementedError
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_project(tmp_path_factory.mktemp("checks"))
    (path.parent / "mine.py").write_text(FUNCTIONS)
    return path


@pytest.fixture(autouse=True)
def _in_its_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)  # where the paths of overrides start


async def check(project: Path, *overrides: str) -> dict[str, Finding]:
    return await dry_run(load_config(project, overrides), project.parent)


def doubts_of(project: Path, *overrides: str) -> list[str]:
    plan = plan_run(load_config(project, overrides), project.parent)
    return doubts(plan.trainer, plan.schedule)


async def test_the_report_names_what_a_preset_and_a_loss_bring(project: Path) -> None:
    checks = await check(project, "algorithm.preset=dapo", "algorithm.policy_loss=gspo")
    text = checks["algorithm"].detail
    assert "policy_loss gspo beside preset dapo brings eps_clip_low 0.0003" in text
    assert "preset dapo, reward.dynamic_filtering: keep [0.0, 1.0], rounds 10" in text
    assert "preset dapo, reward.overlong: buffer_len" in text
    off = await check(project, "algorithm.preset=dapo", "reward.overlong=null")
    assert "preset dapo, reward.overlong: off" in off["algorithm"].detail
    plain = await check(project, "algorithm.preset=grpo")
    assert "\npreset" not in plain["algorithm"].detail


async def test_the_report_shows_blocks_and_rewards(project: Path) -> None:
    checks = await check(
        project,
        "algorithm.preset=rloo",
        "reward.functions={short: {target: 'mine.py:short', weight: 0.5, args: {limit: 3}}}",
        "reward.clip=[-1, 1]",
    )
    assert checks["algorithm"].status is Status.OK
    assert "A baseline    rloo: R - mean of the others" in checks["algorithm"].detail
    assert checks["rewards"].detail == "1 * env + 0.5 * short; clip (-1.0, 1.0)"


@pytest.mark.parametrize(
    ("overrides", "name", "words"),
    [
        (["algorithm.policy_loss=ppo_clop"], "algorithm", "did you mean 'ppo_clip'"),
        (["algorithm.policy_loss=mine.py:missing"], "algorithm", "has no 'missing'"),
        (["reward.functions={f: {target: 'mine.py:long'}}"], "rewards", "has no 'long'"),
        (["reward.functions={f: {target: 'mine.py:short', args: {x: 1}}}"], "rewards", "'x'"),
    ],
)
async def test_what_does_not_resolve_fails(
    project: Path, overrides: list[str], name: str, words: str
) -> None:
    checks = await check(project, *overrides)
    assert checks[name].status is Status.FAIL
    assert words in checks[name].detail


def test_reward_functions_are_resolved_before_a_run_opens_anything(project: Path) -> None:
    config: RunConfig = load_config(project, ["reward.functions={f: {target: 'mine.py:long'}}"])
    with pytest.raises(ValueError, match="has no 'long'"):
        check_parts(plan_run(config, project.parent))


def test_only_the_policy_that_is_scored_must_exist(project: Path) -> None:
    """Fails if `--model` cannot score before what `model.path` names was made."""
    config: RunConfig = load_config(project, ["model.path=./nowhere"])
    with pytest.raises(ConfigError, match=r"model\.path '/.*/nowhere' does not exist"):
        check_parts(plan_run(config, project.parent))
    check_parts(plan_run(config, project.parent), model_path="quickstart")
    with pytest.raises(ConfigError, match=r"--model '\./none' does not exist"):
        check_parts(plan_run(config, project.parent), model_path="./none")


CUT = ["runtime=ray", "serving.engine=vllm"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            [*CUT, "train.backend=deepspeed", "train.backend.zero_stage=0"],
            "set train.backend.zero_stage: 1",
        ),
        (["critic.path=./nowhere", "algorithm.preset=ppo"], "/nowhere' does not exist"),
    ],
)
async def test_what_no_trainer_can_be_made_of_is_named_before_anything_is_loaded(
    project: Path, overrides: list[str], words: str
) -> None:
    """Fails ("ready to train") if the report does not ask what the trainer would refuse."""
    overrides = ["model.dtype=bfloat16", *overrides]
    checks = await check(project, *overrides)
    assert checks["trainer"].status is Status.FAIL, checks["trainer"]
    assert words in checks["trainer"].detail
    # A policy is scored without a trainer.
    check_parts(plan_run(load_config(project, overrides), project.parent))


@pytest.mark.parametrize("backend", ["fsdp2", "deepspeed"])
async def test_critic_and_muon_go_with_every_backend(project: Path, backend: str) -> None:
    """Fails if one of them is still refused on a backend that shards models."""
    chosen = [f"train.backend={backend}", "train.optimizer=muon", "algorithm.preset=ppo"]
    checks = await check(project, "model.dtype=bfloat16", *CUT, *chosen)
    assert checks["trainer"].status is Status.OK, checks["trainer"]
    assert f"muon on all weights, backend {backend}" in checks["trainer"].detail
    assert "with a critic" in checks["trainer"].detail


@pytest.mark.parametrize("backend", ["fsdp2", "deepspeed"])
async def test_adapters_go_with_every_backend(project: Path, backend: str) -> None:
    """Fails if they are still refused on a backend that shards models."""
    checks = await check(project, *CUT, f"train.backend={backend}", "train.lora=4")
    assert checks["trainer"].status is Status.OK, checks["trainer"]
    assert f"adapters of rank 4, backend {backend}" in checks["trainer"].detail


def test_what_a_backend_needs_is_said_at_once(project: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.backend") as caught:
        load_config(project, ["train.backend=deepspeed"])
    text = str(caught.value)
    assert "set runtime: ray (one rank will do)" in text
    assert "set serving.engine: vllm" in text
    assert load_config(project, [*CUT, "train.backend=fsdp2"]).train.backend.kind == "fsdp2"


async def test_adapters_without_peft_are_refused_before_anything_is_loaded(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the package is only looked for with the model in memory."""
    monkeypatch.setitem(sys.modules, "peft", None)  # what Python takes for not installed
    checks = await check(project, "train.lora.rank=4")
    assert checks["trainer"].status is Status.FAIL, checks["trainer"]
    assert install_command("lora") in checks["trainer"].detail
    assert (await check(project))["trainer"].status is Status.OK


AHEAD = ["schedule.staleness_threshold=1", "schedule.partial_rollout=true"]


async def test_running_ahead_without_a_correction_warns(project: Path) -> None:
    uncorrected = [*AHEAD, "algorithm.old_log_probs=recompute"]
    checks = await check(project, *uncorrected)
    assert checks["algorithm"].status is Status.WARN
    assert "is_correction_type 'none' ppo_clip takes them" in checks["algorithm"].detail
    assert "A baseline" in checks["algorithm"].detail
    # What corrects, or is on-policy, is no doubt.
    assert doubts_of(project, *uncorrected, "algorithm.is_correction_type=tis") == []
    assert doubts_of(project, *uncorrected, "algorithm.preset=tis_reinforce") == []
    assert doubts_of(project, *AHEAD) == []
    assert doubts_of(project, *AHEAD, "algorithm.old_log_probs=decoupled") == []
    assert doubts_of(project, "algorithm.old_log_probs=recompute") == []


def test_a_loss_of_ones_own_is_found_from_the_run_file(project: Path) -> None:
    assert doubts_of(project, "algorithm.policy_loss=mine.py:ours") == []
    (doubt,) = doubts_of(
        project, *AHEAD, "algorithm.old_log_probs=recompute", "algorithm.policy_loss=mine.py:ours"
    )
    assert "mine.py:ours takes them" in doubt


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.kl_coef=0.1", "algorithm.kl_estimator=k1"], "k1 in the loss"),
        (
            [
                "algorithm.preset=ppo",
                "algorithm.kl_coef=0.1",
                "algorithm.kl_estimator=k2",
                "critic.learning_rate=0.01",
            ],
            "k2 in the reward",
        ),
        (
            [
                "algorithm.preset=ppo",
                "critic.learning_rate=0.01",
                "rollout.n_samples_per_prompt=1",
                "reward.dynamic_filtering=[0, 1]",
            ],
            "only one strictly between [0.0, 1.0]",
        ),
        (["reward.env_weight=0"], "every reward is 0"),
        (
            ["algorithm.distill={teacher: {path: big}}", "reward.dynamic_filtering=[0, 1]"],
            "by their scores, but algorithm.distill trains on no reward",
        ),
        (["algorithm.is_correction_threshold=[0.5, 2]"], "is_correction_threshold has no effect"),
        (["algorithm.importance_level=sequence"], "importance_level has no effect"),
        (["algorithm.lam=0.9"], "lam has no effect with advantage_estimator dr_grpo"),
        (["algorithm.preset=grpo", "algorithm.turn_rewards=return_to_go"], "use rloo or dr_grpo"),
        (["critic.warmup_steps=2"], "there is no critic"),
        (["checkpoint.keep_best={eval/held/scores: 0}"], "'eval/held/scores' is no metric"),
        (["checkpoint.keep_best=1", "eval.every_steps=0"], "only the last step is evaluated"),
    ],
)
def test_doubts(project: Path, overrides: list[str], words: str) -> None:
    (doubt,) = doubts_of(project, *overrides)
    assert words in doubt


def test_rollouts_that_a_reward_model_alone_pays_are_no_doubt(project: Path) -> None:
    assert doubts_of(project, "reward.env_weight=0", "reward.models={rm: anywhere}") == []


KL = "algorithm.kl_coef=0.1"
FAST = "critic.learning_rate=0.01"
WHITE = "reward.normalize=true"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["algorithm.eps_clip_low=0.3"],
            ["algorithm.eps_clip_low is 0.3", "eps_clip_high 0.2", "set eps_clip_high to at least"],
        ),
        (
            ["algorithm.preset=gspo", "algorithm.eps_clip_low=0.2", "algorithm.eps_clip_high=0.2"],
            ["eps_clip_low is 0.2", "whole sequence", "set eps_clip_low: 0.0003"],
        ),
        (["algorithm.horizon=12"], ["horizon is 12", "48 tokens", "4 times", "horizon: 48"]),
        (
            ["algorithm.preset=grpo", "algorithm.horizon=48"],
            ["horizon is 48", "no effect with loss_agg_mode seq-mean-token-mean", "remove it"],
        ),
        (
            ["algorithm.preset=ppo", "algorithm.advantage_estimator=grpo"],
            ["preset is ppo", "group_norm needs no critic", "preset: grpo or gspo or cispo"],
        ),
        (
            ["algorithm.advantage_estimator=gae", FAST],
            ["preset is dr_grpo, which has no critic", "set preset: ppo"],
        ),
        (
            ["algorithm.preset=ppo", "critic.learning_rate=1e-4"],
            ["critic.learning_rate is 0.0001, below train.learning_rate 0.001", ": 0.01"],
        ),
        (
            [WHITE, "reward.clip=[-0.001, 0.001]"],
            [
                "reward.clip is [-0.001, 0.001]",
                "about 99.9 % of rewards",
                "set reward.clip: [-10, 10]",
            ],
        ),
        ([WHITE, "reward.clip=[0, 1]"], ["reward.clip is [0.0, 1.0]", "about 65.9 % of rewards"]),
        (
            ["algorithm.preset=grpo", "reward.clip_shaped=[-0.1, 0.1]"],
            ["reward.clip_shaped is", "since advantage_estimator group_norm comes before"],
        ),
        (
            [KL, "algorithm.reference_update=1"],
            ["every_steps 1, polyak 1", "kl_coef 0.1 holds nothing", "set every_steps: 100"],
        ),
        (
            [KL, "algorithm.kl_target=6"],
            ["target is 6.0 nats a token", "set kl_target: 0.05"],
        ),
        (
            [KL, "algorithm.kl_target=[1, 6]"],
            ["target is [1.0, 6.0] nats a token", "set kl_target: [0.05, 0.2]"],
        ),
    ],
)
async def test_numbers_that_are_surely_wrong_are_doubted(
    project: Path, overrides: list[str], words: list[str]
) -> None:
    """Each says key, value, why and what to set; fails if a dry run lets it pass in silence."""
    (doubt,) = doubts_of(project, *overrides)
    assert [word for word in words if word not in doubt] == [], doubt
    checks = await check(project, *overrides)
    assert checks["algorithm"].status is Status.WARN
    assert doubt in checks["algorithm"].detail


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.eps_clip_high=0.28"],
        ["algorithm.preset=gspo"],
        ["algorithm.preset=cispo"],
        ["algorithm.preset=tis_reinforce", "algorithm.eps_clip_low=0.9"],
        ["algorithm.horizon=24"],
        ["algorithm.preset=ppo", FAST],
        [WHITE, "reward.clip=[-1, 1]"],
        ["reward.clip=[0, 1]"],
        [KL, "algorithm.reference_update={every_steps: 1, polyak: 0.1}"],
        [KL, "algorithm.kl_target=[0.05, 0.2]"],
        [KL, "algorithm.kl_target=0.05"],
    ],
)
def test_usual_numbers_are_no_doubt(project: Path, overrides: list[str]) -> None:
    assert doubts_of(project, *overrides) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.preset=tis_reinforce", "algorithm.importance_level=sequence"],
        [
            "algorithm.preset=tis_reinforce",
            "algorithm.old_log_probs=recompute",
            "algorithm.is_correction_threshold=[0, 3]",
        ],
        ["algorithm.preset=ppo", "algorithm.lam=0.9", "algorithm.whiten_advantages=mean", FAST],
        ["algorithm.preset=ppo", "critic.warmup_steps=2", "train.lora={rank: 1, alpha: 2}"],
        ["reward.overlong.buffer_len=4", "reward.overlong.penalty_factor=0.5"],
        ["algorithm.kl_coef=1", "algorithm.reference_update={every_steps: 3, polyak: 0.5}"],
        ["checkpoint.keep_best={eval/held/pass@3: 1}", "eval.n_samples=3"],
    ],
)
def test_keys_that_are_read_are_no_doubt(project: Path, overrides: list[str]) -> None:
    assert doubts_of(project, "eval.every_steps=1", *overrides) == []


def test_a_buffer_longer_than_the_budget_is_refused(project: Path) -> None:
    with pytest.raises(ValueError, match=r"overlong.buffer_len .49. is larger than .* .48."):
        load_config(project, ["reward.overlong.buffer_len=49"])
    unit = ["reward.overlong.buffer_len=4"]
    with pytest.raises(ValueError, match=r"max_sampled_tokens .49. is larger than .* .48."):
        load_config(project, [*unit, "reward.overlong.max_sampled_tokens=49"])
