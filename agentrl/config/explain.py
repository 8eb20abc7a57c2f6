"""Errors of pydantic in words that explain how to fix a file, also one with names of others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agentrl.config.base import KindSection, Section
from agentrl.config.keys import dotted, kind_of, leaves, plain_location, sections_at
from agentrl.errors import choices

_WORD = re.compile(r"'([^']*)'")
_TYPE_AFTER_KEY = re.compile(r"bool|literal\[.*\]")
_PAGE = "docs/defaults.md"
"""Reasons for which keys and defaults are not those of others."""
_MOST_NAMES = 40
"""Keys of a foreign section that are translated."""

_OF_FITS = ("data", "objective")
"""Sections that run files do not have."""

_ROLLOUTS = "rollout.n_samples_per_prompt rollouts of each"
_OTHER_NAMES: tuple[tuple[str, str, str], ...] = (
    ("eval.n_samples", "", "val_n eval_n_samples_per_prompt"),
    ("rollout.n_samples_per_prompt eval.n_samples", "",
     "num_generations num_generations_per_prompt group_size n rollouts_per_example "
     "num_samples_per_prompt num_samples_per_prompt_rollout"),
    ("rollout.prompts_per_step data.examples_per_step",
     f"it counts prompts; a step has {_ROLLOUTS}",
     "train_batch_size rollout_batch_size generation_batch_size gen_batch_size prompt_batch_size "
     "num_prompts_per_step num_unique_prompts_rollout global_batch_size"),
    ("train.minibatches", "it counts the updates of a pass, not the rollouts of an update",
     "ppo_mini_batch_size policy_mini_batch_size mini_batch_size num_mini_batches num_minibatches "
     "critic_mini_batch_size ppo_n_minibatches require_batches steps_per_generation"),
    ("train.epochs_per_batch", "",
     "ppo_epochs num_ppo_epochs num_iterations update_epochs_per_batch"),
    ("train.micro_batch_tokens data.examples_per_step",
     "a step is divided by tokens, which never changes the result",
     "per_device_train_batch_size"),
    ("train.micro_batch_tokens", "a step is divided by tokens, which never changes the result",
     "gradient_accumulation_steps accumulation_steps micro_batch_size micro_train_batch_size "
     "ppo_micro_batch_size ppo_micro_batch_size_per_gpu micro_train_batch_size_per_gpu "
     "log_prob_micro_batch_size_per_gpu micro_forward_batch_size_per_gpu "
     "ppo_max_token_len_per_gpu train_max_tokens_per_gpu max_tokens_per_gpu"),
    ("rollout.max_response_tokens", "of a whole rollout, what tools return included",
     "max_response_length max_completion_length generate_max_len response_length "
     "rollout_max_response_len"),
    ("rollout.max_turn_tokens", "of one turn of the model",
     "max_new_tokens max_generate_length max_tokens"),
    ("dataset.max_prompt_tokens", "", "max_prompt_length prompt_max_len"),
    ("rollout.max_context_tokens data.max_tokens", "",
     "max_model_len max_length max_len seq_len max_input_length pack_length "
     "max_total_sequence_length"),
    ("algorithm.horizon objective.horizon",
     "left out, it is rollout.max_response_tokens, the same in every step",
     "max_seq_len max_seq_length loss_scale_factor loss_denominator"),
    ("algorithm.kl_coef objective.beta", "0 loads no reference",
     "beta kl_loss_coef init_kl_coef kl_beta kl_ctl reference_policy_kl_penalty"),
    ("algorithm.use_kl_loss", "false takes the penalty off the reward", "use_kl_in_reward"),
    ("algorithm.kl_estimator", "", "kl_loss_type kl_penalty kl_penalty_type use_kl_estimator_k3"),
    ("algorithm.kl_target", "", "target_kl kl_ctrl"),
    ("algorithm.eps_clip_low", "with eps_clip_high",
     "epsilon epsilon_low clip_ratio clip_ratio_low clip_eps clip_eps_low clip_range cliprange "
     "eps_clip ratio_clip_min"),
    ("algorithm.eps_clip_high", "",
     "epsilon_high clip_ratio_high clip_eps_high clip_higher ratio_clip_max"),
    ("algorithm.dual_clip", "", "clip_ratio_c eps_clip_c c_clip ratio_clip_c"),
    ("algorithm.loss_agg_mode objective.loss", "",
     "loss_type loss_reduction token_level_loss"),
    ("algorithm.policy_loss", "", "loss_mode policy_loss_type ppo_loss_type"),
    ("algorithm.advantage_estimator", "group_norm divides by the group's spread, dr_grpo does not",
     "adv_estimator scale_rewards norm_adv_by_std norm_adv_by_std_in_grpo grpo_norm_by_std"),
    ("algorithm.whiten_advantages", "",
     "normalize_advantages advantage_batch_normalize no_advantage_std_norm"),
    ("algorithm.is_correction_type", "",
     "use_tis tis_type rollout_is vllm_importance_sampling_correction "
     "vllm_importance_sampling_mode enable_vllm_is_correction"),
    ("algorithm.is_correction_threshold", "it has two bounds",
     "tis_imp_ratio_cap rollout_is_threshold vllm_importance_sampling_cap tis_clip "
     "vllm_is_truncated_threshold truncated_importance_sampling_ratio_cap"),
    ("algorithm.importance_level", "of tis_reinforce; GSPO is policy_loss: gspo",
     "importance_sampling_level"),
    ("algorithm.old_log_probs", "rollout takes those of the sampler",
     "bypass_mode use_vllm_logprobs use_rollout_logprobs"),
    ("algorithm.lam", "", "lambd gae_lambda"),
    ("algorithm.entropy_coef", "", "entropy_coeff ent_coef entropy_loss_coef"),
    ("algorithm.reference_update.every_steps", "",
     "sync_ref_model ref_model_sync_steps ref_update_interval ref_policy_update_freq"),
    ("algorithm.reference_update.polyak", "", "ref_model_mixup_alpha"),
    ("algorithm.mask_truncated", "",
     "mask_truncated_completions overlong_filtering apply_overlong_filtering"),
    ("reward.dynamic_filtering.keep", "",
     "filter_groups dynamic_sampling active_sampling dynamic_filtering_reward_range"),
    ("reward.overlong.buffer_len", "", "overlong_buffer overlong_buffer_len"),
    ("reward.clip", "", "reward_clip_range reward_clip"),
    ("reward.normalize", "", "normalize_reward normalize_enable"),
    ("reward.functions", "each has a name of its own, a target and a weight",
     "reward_fn reward_func reward_funcs reward_weights custom_reward_function"),
    ("critic.learning_rate", "", "critic_learning_rate critic_lr"),
    ("critic.warmup_steps", "",
     "critic_warmup freezing_steps freezing_actor_steps num_critic_only_steps"),
    ("critic.path", "", "critic_pretrain"),
    ("critic.value_clip", "", "cliprange_value value_clip_range"),
    ("train.steps data.epochs", "it counts optimizer steps", "num_train_epochs"),
    ("train.steps", "it counts optimizer steps", "max_steps total_training_steps total_epochs"),
    ("train.learning_rate critic.learning_rate", "", "lr actor_learning_rate"),
    ("train.warmup_steps", "", "lr_warmup_steps num_warmup_steps"),
    ("train.schedule", "", "lr_scheduler lr_scheduler_type"),
    ("train.max_grad_norm", "", "grad_clip clip_grad gradient_clipping"),
    ("train.betas", "", "adam_betas"),
    ("train.weight_decay", "", "l2"),
    ("train.lora.rank", "", "lora_rank lora_r"),
    ("train.lora.targets", "", "target_modules lora_target_modules"),
    ("model.path critic.path", "", "model_name_or_path pretrain hf_checkpoint"),
    ("model.dtype", "", "torch_dtype bf16 param_dtype"),
    ("model.gradient_checkpointing", "", "enable_gradient_checkpointing"),
    ("model.attention", "", "attn_implementation"),
    ("dataset.source data.source", "",
     "train_files train_file train_data prompt_data dataset_name"),
    ("eval.datasets.NAME.source", "NAME is of your choice",
     "val_files val_file val_data eval_dataset"),
    ("eval.every_steps", "", "test_freq eval_steps eval_interval local_eval_every val_period"),
    ("checkpoint.every_steps", "", "save_freq save_steps save_interval ckpt_interval"),
    ("checkpoint.save", "", "save_only_model save_contents"),
    ("checkpoint.keep_last", "", "save_total_limit max_ckpt_num max_ckpts_to_keep"),
    ("log.sinks", "", "report_to logger use_wandb wandb_project"),
    ("rollout.max_assistant_turns", "", "max_turns max_tool_calling_iterations"),
    ("chat.tool_parser", "", "tool_call_parser"),
    ("env.target", "", "env_class agent_func_path"),
    ("serving.urls", "", "remote_inference_engine_urls"),
    ("sync.backend", "", "weight_sync_backend vllm_sync_backend"),
    ("serving.engine", "", "use_vllm rollout_backend"),
    ("serving.replicas", "", "vllm_num_engines num_inference_engines num_engines"),
    ("serving.args", "as {tensor_parallel_size: 2}",
     "tensor_parallel_size tensor_model_parallel_size vllm_tensor_parallel_size "
     "inference_engine_tensor_parallel_size"),
    ("serving.kv_cache_gb", "it counts GiB", "gpu_memory_utilization vllm_gpu_memory_utilization"),
    ("schedule.staleness_threshold", "1 rolls out one step ahead", "async_queue_size async_train"),
    ("schedule.max_version_lag", "",
     "max_staleness max_off_policy_steps max_async_level max_head_offpolicyness "
     "max_trajectory_age_steps"),
    ("schedule.trigger_parameter_sync_step", "", "update_weights_interval sync_interval"),
    ("runtime.trainer_ranks", "", "n_gpus_per_node num_processes actor_num_gpus_per_node"),
    ("runtime.placement", "", "colocate_all colocate_all_models"),
    ("train.backend.zero_stage", "", "deepspeed_stage"),
)  # fmt: skip
"""A key of run files and perhaps one of fit files, a remark on the first, and what verl, TRL,
OpenRLHF, prime-rl, SkyRL and others call it."""

OTHER_NAMES: Mapping[str, tuple[tuple[str, ...], str]] = {
    name: (tuple(keys.split()), remark) for keys, remark, names in _OTHER_NAMES
    for name in names.split()
}  # fmt: skip
"""By the name of another framework: keys here, of which a file has the first that it knows."""


class Explainer:
    """Explains what is wrong in a file with a given root section."""

    def __init__(self, root: type[Section]) -> None:
        self._root = root

    def lines(self, error: ValidationError, data: Mapping[str, Any]) -> list[str]:
        """One line for each thing that is wrong."""
        return [self._explain(item, data) for item in self._whole(error.errors())]

    def _whole(self, items: Iterable[Any]) -> Iterator[Any]:
        """Errors of a key that takes several types as one, with all words that it takes.

        Pydantic reports one for each type, with the type after the key: `whiten_advantages.bool`.
        """
        keys, merged = {key.name for key in leaves(self._root)}, dict[str, Any]()
        for item in items:
            location = plain_location(item["loc"], self._root)
            dotted = ".".join(location[:-1])
            if dotted not in keys or not _TYPE_AFTER_KEY.fullmatch(location[-1]):
                yield item
                continue
            first = merged.setdefault(dotted, {**item, "loc": item["loc"][:-1], "words": []})
            first["words"] += ["true", "false"] if location[-1] == "bool" else _words(item)
        yield from merged.values()

    def _explain(self, item: Any, data: Mapping[str, Any]) -> str:
        location = plain_location(item["loc"], self._root)
        dotted = ".".join(location) or "(whole file)"
        if item["type"] == "extra_forbidden":
            return f"  {dotted}: {self._unknown(location, data)}"
        if item["type"] == "missing":
            return f"  {dotted}: missing; this key is required"
        if item["type"] == "union_tag_invalid":
            kinds = [
                kind for kind in sections_at(location, self._root) if issubclass(kind, KindSection)
            ]
            names = [name for kind in kinds for name in kind.kinds()]
            text = choices(item["ctx"]["tag"], names)
            why = "" if "did you mean" in text else f"; {_PAGE} has the reasons for these"
            return f"  {dotted}.{kinds[0].bare}: {text}{why}"
        if words := _words(item):
            return f"  {dotted}: {choices(str(item['input']), words)}"
        message = item["msg"].removeprefix("Value error, ").removeprefix(f"{dotted}: ")
        got = "" if item["type"] == "value_error" else f" (got {item['input']!r})"
        return f"  {dotted}: {message}{got}"

    def _unknown(self, location: Sequence[str], data: Mapping[str, Any]) -> str:
        """Why a key may not stand where it does: another kind has it, or no section."""
        *parents, key = location
        for known in leaves(self._root):
            if known.kinds and f"{known.name}.".startswith(".".join(location) + "."):
                settings = " or ".join(known.kinds)
                name = known.kinds[0].partition(": ")[0]
                return f"{key} belongs to {settings}, and {name} is {self._setting(name, data)}"
        if meant := self._meant(location):
            page = f" {_PAGE} has such names of others" if key.lower() in OTHER_NAMES else ""
            return f"unknown key: got {key!r}; {meant}{page}"
        text = f"unknown key: {choices(key, self._keys_at(parents, data))}"
        return "\n".join([text, *self._foreign(location, data)])

    def _meant(self, location: Sequence[str]) -> str:
        """The key that another framework calls by this name, or that another section has."""
        *parents, name = location
        known = {key.name: key for key in leaves(self._root)}
        keys, remark = OTHER_NAMES.get(name.lower(), ((), ""))
        found = [key for key in keys if any(f"{one}.".startswith(f"{key}.") for one in known)]
        sections = {key: key.partition(".")[0] for key in found}
        found.sort(key=lambda key: (sections[key] not in _OF_FITS, sections[key] not in parents))
        alike = [key for key in known if key.rpartition(".")[2] == name]
        found = found[:1] or sorted(alike, key=lambda key: key.count("."))
        if not found:
            return ""
        key = known.get(found[0])
        kinds = f" with {' or '.join(key.kinds)}" if key is not None and key.kinds else ""
        remark = f" ({remark})" if remark and found[0] == keys[0] else ""
        return f"did you mean {' or '.join(found[:3])}{kinds}{remark}?"

    def _foreign(self, location: Sequence[str], data: Mapping[str, Any]) -> list[str]:
        """A line for each key in a section of another framework that is known by another name."""
        value: Any = data
        for part in location:
            value = value.get(part) if isinstance(value, Mapping) else None
        inner = dotted(value, ".".join(location)) if isinstance(value, Mapping) else {}
        # Words such as `name` and `path` are keys of many things.
        paths = [
            path
            for path in (name.split(".") for name in inner)
            if path[-1].lower() in OTHER_NAMES or "_" in path[-1]
        ]
        named = [(path, meant) for path in paths if (meant := self._meant(path))]
        return [f"    {'.'.join(path)}: {meant}" for path, meant in named[:_MOST_NAMES]]

    def _setting(self, name: str, data: Mapping[str, Any]) -> Any:
        """What names a kind in a run file, or its default."""
        *parents, key = name.split(".")
        value: Any = data
        for part in parents:
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            value = value.get(key)
        default = sections_at(parents, self._root)[0].model_fields[key].default
        return default if value is None else value

    def _keys_at(self, path: Sequence[str], data: Mapping[str, Any]) -> list[str]:
        """Keys of the section at a path, of the kind that it is in this file."""
        kinds, value = sections_at(path, self._root), data
        for name in path:
            inner = value.get(name) if isinstance(value, Mapping) else None
            value = inner if isinstance(inner, Mapping) else {}
        kind = kind_of(kinds, value) or (kinds[0] if kinds else None)
        return [] if kind is None else list(kind.model_fields)


def _words(item: Any) -> list[str]:
    """Texts that a key takes; empty if it takes none, or others, too."""
    expected = item["ctx"]["expected"] if item["type"] == "literal_error" else ""
    return item.get("words") or _WORD.findall(expected)
