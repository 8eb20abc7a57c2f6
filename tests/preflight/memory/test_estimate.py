"""Bytes of the estimate beside those that built models, optimizers and caches hold."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from agentrl.config import RunConfig, load_config
from agentrl.config.fleet import EmbeddedServing
from agentrl.config.plan import plan_run
from agentrl.config.training import LoraSection, TrainSection
from agentrl.errors import ConfigError
from agentrl.models.cache_bytes import cache_shape
from agentrl.models.lm_head import use_float32_head
from agentrl.preflight.checks import machine
from agentrl.preflight.memory.activations import LiveBytes, measured
from agentrl.preflight.memory.estimate import (
    Demand,
    ModelShape,
    ProcessMemory,
    Room,
    activation_bytes,
    estimate,
    kv_cache_bytes,
    trained_bytes,
)
from agentrl.preflight.memory.shape import demand_of, model_shape, shape_of
from agentrl.serving.embedded.batch import make_cache
from agentrl.serving.embedded.forward import RowModel
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.kernels.choose import use_kernel
from agentrl.train.model.logprobs import packed_log_probs
from agentrl.train.model.lora import adapted_layers, add_adapters
from agentrl.train.optim.choose import make_optimizer
from agentrl.train.reference import Reference
from agentrl.train.saving.snapshot import StateSnapshot
from agentrl.train.trainer import Trainer
from agentrl.types import Termination, Trajectory, TrajectoryGroup
from agentrl.types.finding import Finding, Status
from tests.runtime.tiny_project import write_project
from tests.train.tiny_llama import algorithm, make_step

TINY = LlamaConfig(
    vocab_size=16, hidden_size=4, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("memory"))


SHAPE = ModelShape(
    parameters=1000, adapters=10, linear=600, layers=2, hidden=4, intermediate=8, kv_width=2,
    vocabulary=16, cache=cache_shape(TINY), layer=400, outside=200,
)  # fmt: skip
ACTIVATIONS = 7000


def processes(config: RunConfig, reward_models: int = 0) -> list[ProcessMemory]:
    run = plan_run(config, Path())
    serving = run.engines.serving
    demand = Demand(shape=SHAPE, activations=ACTIVATIONS, reward_models=reward_models)
    return estimate(run.trainer, serving, demand, on_gpu=False, room=Room(host=2**30))


def parts(config: RunConfig) -> dict[str, int]:
    return {part.what: part.size for part in processes(config)[0].parts}


async def memory(config: RunConfig) -> Finding | str:
    run = plan_run(config, Path())
    return await machine.memory(run.trainer, run.engines, run.rewards)


def test_what_is_kept_is_counted_exactly(project: Path) -> None:
    """Per parameter: float32 has gradient and two moments; bfloat16 a master and a sum besides."""
    found = parts(load_config(project))
    assert (found["weights"], found["gradients"], found["optimizer"]) == (4000, 4000, 8000)
    small = parts(load_config(project, ["model.dtype=bfloat16"]))
    assert (small["weights"], small["gradients"], small["optimizer"]) == (2000, 4000, 12000)
    lora = parts(load_config(project, ["train.lora.rank=3"]))
    assert (lora["weights"], lora["gradients"], lora["optimizer"]) == (4120, 120, 240)
    ppo = ["algorithm.preset=ppo", "algorithm.kl_coef=0.1"]
    full = parts(load_config(project, ppo))
    assert (full["reference"], full["critic"]) == (4000, 16000)


def test_caches_and_activations_follow_the_limits(project: Path) -> None:
    config = load_config(project)
    assert isinstance(config.serving, EmbeddedServing)
    cache = kv_cache_bytes(config.serving, config.model, SHAPE, context=100, free=0)
    assert cache == 16 * 2 * 4 * 2 * 2 * 128
    tokens = 512
    layer = tokens * (4 * (7 * 4 + 3 * 2 + 4 * 8) + 16 * 4)
    head = tokens * 16 * 4
    assert activation_bytes(config.train, config.model, SHAPE) == 2 * layer + head
    saved = load_config(project, ["model.gradient_checkpointing=true"])
    assert activation_bytes(saved.train, saved.model, SHAPE) == layer + 2 * tokens * 4 * 4 + head
    some, deep = load_config(project, ["model.gradient_checkpointing=3"]), replace(SHAPE, layers=5)
    kept = 2 * layer + 3 * tokens * 4 * 4
    assert activation_bytes(some.train, some.model, deep) == kept + head


def test_each_lane_but_the_first_has_gradients_and_activations(project: Path) -> None:
    config = load_config(project, ["train.backend.lanes=3"])
    once = ACTIVATIONS
    found = parts(config)
    assert (found["activations"], found["other lanes (2)"]) == (once, 2 * (4000 + once))
    ppo = parts(load_config(project, ["train.backend.lanes=3", "algorithm.preset=ppo"]))
    assert ppo["other lanes (2)"] == 2 * (8000 + once)
    adapters = parts(load_config(project, ["train.backend.lanes=2", "train.lora.rank=3"]))
    assert adapters["other lanes (1)"] == 120 + once
    assert "other lanes" not in str(parts(load_config(project, ["train.backend.lanes=1"])))


def test_ranks_and_servers_are_counted(project: Path) -> None:
    ray = [
        "runtime=ray",
        "runtime.trainer_ranks=4",
        "runtime.rollout_workers=3",
        "serving.engine=vllm",
    ]
    cut = load_config(project, [*ray, "train.backend=fsdp2", "serving.replicas=2"])
    found = {process.name: process for process in processes(cut)}
    assert {name: process.count for name, process in found.items()} == {
        "trainer": 4, "rollout worker": 3, "vLLM server": 2,
    }  # fmt: skip
    sizes = {part.what: part.size for part in found["trainer"].parts}
    assert (sizes["weights"], sizes["optimizer"], sizes["gradients"]) == (1000, 2000, 1000)
    assert sizes["gathered"] == 4 * (200 + 2 * 400) + 4 * 400
    narrow = {
        p.name: p
        for p in processes(
            load_config(project, [*ray, "train.backend=fsdp2", "model.dtype=bfloat16"])
        )
    }["trainer"]
    # Slices in float32 are the masters: 16 bytes a parameter over 4 ranks, not 18.
    assert sum(p.size for p in narrow.parts if p.rests) == 16 * 1000 // 4


def test_reward_models_are_counted_where_rollouts_run(project: Path) -> None:
    """Fails if workers in processes of their own are taken to share one copy, or to hold none."""

    def held(*changes: str) -> dict[str, int]:
        found = processes(load_config(project, changes), reward_models=500)
        return {process.name: process.count for process in found
                if any(part.what == "reward models" for part in process.parts)}  # fmt: skip

    assert held() == {"trainer with engine": 1}
    ray = ["runtime=ray", "runtime.rollout_workers=3", "serving.engine=vllm"]
    assert held(*ray) == {"rollout worker": 3}


async def test_a_run_that_does_not_fit_fails_and_says_what_to_lower(project: Path) -> None:
    fits = await memory(load_config(project))
    assert isinstance(fits, str), fits
    assert "trainer with engine" in fits
    # The tiny model, but a cache of more than any machine that runs this has.
    large = ["serving.kv_cache_gb=1e6", "serving.max_batch_size=100000000"]
    check = await memory(load_config(project, large))
    assert isinstance(check, Finding)
    assert check.status is Status.FAIL, check
    assert "lower serving.kv_cache_gb" in check.fix
    with pytest.raises(ConfigError, match="is 9, and the model has 2 layers; set it to true"):
        await memory(load_config(project, ["model.gradient_checkpointing=9"]))


async def test_the_shape_of_a_model_is_read_without_its_weights(project: Path) -> None:
    """The tiny Llama: 2 layers of width 32, 258 tokens, tied head."""
    config = load_config(project)
    shape = model_shape(config.model)
    attention = 32 * 32 + 32 * 16 + 32 * 16 + 32 * 32
    layer = attention + 3 * 32 * 64 + 2 * 32
    assert shape.parameters == 2 * layer + shape.vocabulary * 32 + 32
    assert (shape.layers, shape.hidden, shape.intermediate, shape.kv_width) == (2, 32, 64, 16)
    assert shape.adapters == 2 * (64 + 48 + 48 + 64 + 3 * 96)
    broken = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(project.parent)})}
    )
    check = await memory(broken)
    assert isinstance(check, Finding)
    assert check.status is Status.WARN


def held_bytes(holder: Any) -> int:
    """Bytes of all tensors of an optimizer's state, each storage once."""
    found: dict[int, int] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for one in value.values():
                look(one)
        elif isinstance(value, list | tuple):
            for one in value:
                look(one)

    look(holder)
    return sum(found.values())


def real_llama(dtype: torch.dtype = torch.float32, layers: int = 2) -> Any:
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=160, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [None, 3])
def test_weights_and_states_are_those_of_a_built_model(
    project: Path, dtype: str, rank: int | None, optimizer: str
) -> None:
    """Fails if a tied head is counted twice, a master forgotten, or adapters taken for weights."""
    lora = None if rank is None else LoraSection(rank=rank)
    train = TrainSection.model_validate({"optimizer": optimizer, "lora": lora})
    model = real_llama(getattr(torch, dtype))
    shape = shape_of(model)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.layer * 2 + shape.outside == shape.parameters
    if lora is not None:
        add_adapters(model, lora, base="")
    moving = [p for p in model.parameters() if p.requires_grad]
    count = shape.parameters if rank is None else shape.adapters * rank
    assert sum(p.numel() for p in moving) == count
    made = make_optimizer(model, train)
    model(torch.ones(1, 4, dtype=torch.long)).logits.float().sum().backward()
    made.step(learning_rate=0.0, max_grad_norm=1.0, grad_norm=1.0)
    section = load_config(project, [f"model.dtype={dtype}"]).model
    outside = shape.outside if rank is None else 0
    state, _ = trained_bytes(train, section, count, kept=1, outside=outside)
    # A float32 parameter is its own master, and shown as one.
    own = 4 * count if dtype == "float32" else 0
    assert held_bytes(made.state_dict()) - own == pytest.approx(state, rel=0.02)


def test_rows_of_the_embedded_engine_are_counted(project: Path) -> None:
    config = load_config(project, ["serving.kv_cache_gb=0.01"])
    assert isinstance(config.serving, EmbeddedServing)
    model = real_llama()
    cache = make_cache(RowModel(model), config.serving, 100)
    counted = kv_cache_bytes(config.serving, config.model, shape_of(model), context=100, free=0)
    assert counted == cache.data.untyped_storage().nbytes()


@pytest.mark.parametrize(
    ("layers", "which"),
    [(2, "false"), (2, "true"), (5, "false"), (5, "true"), (5, "2"), (5, "4"), (7, "6")],
)
def test_layers_that_were_not_run_cost_what_they_cost(
    project: Path, layers: int, which: str
) -> None:
    """A model of `layers` layers run whole, beside few layers and what one more keeps."""
    from agentrl.preflight.memory import activations as module

    config = load_config(project, [f"model.gradient_checkpointing={which}"])
    arguments: Any = {"response": 64, "on_gpu": True}
    shape = real_llama(layers=layers).config
    whole = module._book(shape, config.train, config.model, (128,) * 4, **arguments)
    found = measured(shape, config.train, config.model, row=128, **arguments)
    assert found == pytest.approx(max(whole.forward, whole.early, whole.late), rel=0.02)


def test_what_dropout_keeps_is_counted_on_a_gpu_too(project: Path) -> None:
    """Fails if a pass over tensors without memory ends at its masks, and a formula is taken."""
    few: Any = {"row": 64, "response": 8}
    shape = real_llama().config
    found = []
    for rate in (0.0, 0.1):
        lora = f"train.lora={{rank: 2, dropout: {rate}}}"
        config = load_config(project, [lora])
        for on_gpu in (False, True):
            found.append(measured(shape, config.train, config.model, on_gpu=on_gpu, **few))
    plain, plain_gpu, masked, masked_gpu = found
    assert None not in found
    assert masked > plain
    assert masked_gpu > plain_gpu


def test_a_base_in_four_bits_is_that_of_the_layers_with_adapters(project: Path) -> None:
    """Fails if layers that no target names are taken for 4 bits, as they never are."""
    model = real_llama(torch.bfloat16)
    targets = ("q_proj", "layers.1.mlp.up_proj")
    add_adapters(model, LoraSection(rank=2, targets=targets), base="")
    below = sum(layer.base_layer.weight.numel() for _, layer in adapted_layers(model))
    assert shape_of(real_llama(), targets=targets).linear == below
    config = load_config(project, ["train.lora={rank: 2, base: nf4, targets: [q_proj]}"])
    plan = plan_run(config, Path()).trainer
    assert demand_of(plan, real_llama().config, on_gpu=False).shape.linear == 2 * 64 * 64


def test_a_config_without_layers_is_left_to_the_formula(project: Path) -> None:
    config, none = load_config(project), LlamaConfig(num_hidden_layers=0)
    options: Any = {"row": 8, "response": 4, "on_gpu": False}
    assert measured(none, config.train, config.model, **options) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("attention", ["auto", "sdpa"])
def test_what_a_pass_keeps_is_what_autograd_keeps(
    project: Path, dtype: str, rank: int | None, attention: str
) -> None:
    """Tensors that a real model saves for its backward pass, each storage once, on this CPU. Fails
    if adapters of a model without memory are of another dtype than those of a model with some."""
    from agentrl.preflight.memory import activations as module

    changes = [f"model.dtype={dtype}", *([] if rank is None else [f"train.lora.rank={rank}"])]
    config = load_config(project, [f"model.attention={attention}", *changes])
    model = real_llama(getattr(torch, dtype))
    use_kernel(model, attention)
    if config.train.lora is not None:
        add_adapters(model, config.train.lora, base="")
    if config.model.head_dtype == "float32":
        use_float32_head(model)
    batch = module._batch((128,) * 4, response=64, device=torch.device("cpu"))
    saved: dict[int, tuple[torch.Tensor, int]] = {}
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (tensor, storage.nbytes())
        return tensor

    with packed_attention(model), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        packed_log_probs(model, batch)
    kept = sum(size for _, size in saved.values())
    book = module._book(
        real_llama().config, config.train, config.model, (128,) * 4, response=64, on_gpu=False,
        backward=False,
    )  # fmt: skip
    assert book.kept == pytest.approx(kept, rel=0.12)


def test_bits_are_counted() -> None:
    """A byte and its share of a scale for each moment."""
    from agentrl.config.schema import ModelSection, TrainSection
    from agentrl.preflight.memory.estimate import trained_bytes

    model = ModelSection(path="x", dtype="bfloat16")
    state, sums = trained_bytes(TrainSection(optimizer="adamw_8bit"), model, 25600, kept=1)
    assert (state, sums) == (25600 * 4 + 2 * (25600 + 4 * 100), 25600 * 4)


STEPS = {
    "float32": [],
    "bfloat16": ["model.dtype=bfloat16"],
    "adapters": ["train.lora.rank=8"],
    "narrow adapters": ["train.lora.rank=8", "model.dtype=bfloat16"],
    "muon": ["train.optimizer=muon"],
    "checkpointing": ["model.gradient_checkpointing=true"],
    "checkpointing, with a save": ["model.gradient_checkpointing=true"],
    "penalty": ["algorithm.kl_coef=0.1"],
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_take_what_is_estimated(project: Path, case: str) -> None:
    """All tensors of two real steps of a tiny model, at their peak. Fails if weights, masters,
    moments, gradients, reference, activations or the copy of what is being saved are forgotten, or
    counted twice."""
    changes, saves = STEPS[case], "save" in case
    limits = ["rollout.max_context_tokens=128", "rollout.max_response_tokens=64"]
    lanes = "train.backend={kind: torch, lanes: 1}"
    config = load_config(project, [*limits, lanes, "train.micro_batch_tokens=512", *changes])
    run = plan_run(config, Path())
    plan, dtype = run.trainer, getattr(torch, run.trainer.model.dtype)
    demand = demand_of(plan, wide_llama(dtype).config, on_gpu=False)
    (process, *_) = estimate(
        plan, run.engines.serving, demand, on_gpu=False, room=Room(), saves=saves
    )
    own = {"process", "keys and values"}
    expected = sum(part.size for part in process.parts if part.what not in own)

    gc.collect()
    with LiveBytes() as live:
        model = wide_llama(dtype)
        if plan.train.lora is not None:
            add_adapters(model, plan.train.lora, base="")
        if plan.model.head_dtype == "float32":
            use_float32_head(model)
        reference = Reference(wide_llama(dtype)) if plan.algorithm.needs_reference else None
        backend = make_backend(
            model, train=plan.train, gradient_checkpointing=plan.model.gradient_checkpointing,
            ranks=None,
        )  # fmt: skip
        section = algorithm(kl_coef=plan.algorithm.kl_coef)
        trainer = Trainer(
            model, train=plan.train, algorithm=section, backend=backend, reference=reference
        )
        batch = make_step(rows_of_128(), micro_batch_tokens=512, prefix_sharing=False)
        for _ in range(2):
            trainer.step(batch)
            held = StateSnapshot()
            if saves:  # nobody has begun to write it when the next update comes
                trainer.hold(held)
                kept = [held.keep(name, weight) for name, weight in trainer.weights()]
                assert kept
    assert live.peak == pytest.approx(expected, rel=0.15)


def wide_llama(dtype: torch.dtype) -> Any:
    """Weights and activations of a pass are about as large as each other."""
    config = LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def rows_of_128() -> list[TrajectoryGroup]:
    """Two micro-batches of four rows with 64 tokens of prompt and 64 of answer each."""
    rng = random.Random(0)
    found: list[TrajectoryGroup] = []
    for number in range(2):
        prompt = tuple(rng.choices(range(3, 1024), k=64))
        rows = tuple(
            Trajectory(
                task_id="t", group_id=f"g{number}", rollout_id=f"g{number}/{index}",
                prompt_ids=prompt, response_ids=tuple(rng.choices(range(3, 1024), k=64)),
                response_mask=(1,) * 64, rollout_log_probs=(-2.0,) * 64, policy_versions=(0,) * 64,
                reward=float(index % 3), termination=Termination.ENV_DONE,
            )
            for index in range(4)
        )  # fmt: skip
        found.append(TrajectoryGroup(group_id=f"g{number}", task_id="t", trajectories=rows))
    return found
