"""A language model's body with one number per token on top: what a rollout is worth from there.

The value of a response token is read at the position that predicts it, so it knows everything
before the token and not the token itself.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import CriticSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.reward.scale import SCALE_FILE, RewardScale
from agentrl.train.model.logprobs import hidden_states
from agentrl.train.model.lora import merged_weights
from agentrl.train.model.pretrained import (
    QUICKSTART,
    SCORED,
    check_model_path,
    pick_device,
    quickstart_checkpoint,
)

logger = logging.getLogger(__name__)

_HEADS = ("score", "classifier")
GAUSSIAN_LABELS = {0: "mean", 1: "deviation"}
"""`id2label` of a reward model that gives a Gaussian; the deviation is before `purm_deviation`."""


class ValueHead(nn.Linear):
    """One number per token, computed in float32 or wider, also where its weights are narrower."""

    def forward(self, input: Tensor) -> Tensor:
        """[A, 1] of [A, E]."""
        kind = torch.promote_types(self.weight.dtype, torch.float32)
        return linear(input.to(kind), self.weight.to(kind), self.bias.to(kind))


class ValueModel(nn.Module):
    """Body and value head; packed rows run through the body as through that of the policy.

    The head computes and is kept in float32 (float64 over a float64 body), whatever the body's
    dtype is: values near each other would be equal in bfloat16, and advantages are differences.
    DeepSpeed alone, which knows one dtype, keeps the head in that of the body between float32
    masters and float32 products.
    """

    def __init__(self, body: Any, head: nn.Linear | None = None, *, outputs: int = 1) -> None:
        """Put a head on a body.

        Args:
            body: a `transformers` model without a head of its own.
            head: [O, E]; None begins with zeros, so that all values are 0 and their gradient
                reaches the head alone in the first update.
            outputs: O, numbers a token: 1 value; 2 where a reward model gives a mean and a
                deviation.

        Raises:
            ConfigError: a head of another shape; its outputs are not one value.
        """
        super().__init__()
        param = next(body.parameters())
        width = body.config.hidden_size if head is None else head.in_features
        if head is not None and head.out_features != outputs:
            raise ConfigError(
                f"the head of the checkpoint has {head.out_features} outputs, expected {outputs}; "
                f"give a model that was trained with num_labels={outputs}"
            )
        self.body = body
        self.value_head = ValueHead(
            width,
            outputs,
            device=param.device,
            dtype=torch.promote_types(param.dtype, torch.float32),
        )
        with torch.no_grad():
            self.value_head.weight.zero_()
            self.value_head.bias.zero_()
            if head is not None:
                self.value_head.weight.copy_(head.weight)
                if getattr(head, "bias", None) is not None:
                    self.value_head.bias.copy_(head.bias)

    @property
    def config(self) -> Any:
        """Of the body; attention reads it."""
        return self.body.config

    @property
    def base_model(self) -> Any:
        """The body, as `transformers` models name it."""
        return self.body

    @property
    def _no_split_modules(self) -> Any:
        """Of the body: the names of its layers, as `transformers` models have them."""
        return getattr(self.body, "_no_split_modules", None)

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """As `transformers` models have it."""
        self.body.gradient_checkpointing_enable(*args, **kwargs)

    def forward(self, batch: TensorBatch) -> Tensor:
        """[R] The value before each trained token, 0 elsewhere. Call inside `packed_attention`.

        [R, O] with several outputs.
        """
        hidden_AE = hidden_states(self, batch)[batch.source_A]
        values_AO = self.value_head(hidden_AE)
        shape = (len(batch.mask_R), values_AO.shape[1])
        zeros_RO = torch.zeros(shape, dtype=values_AO.dtype, device=values_AO.device)
        found_RO = zeros_RO.index_put((batch.index_A,), values_AO)
        return found_RO[:, 0] if shape[1] == 1 else found_RO


def load_critic(critic: CriticSection, model: ModelSection) -> ValueModel:
    """The critic that a run begins with: `load_value_model`, in the unit of the reward.

    Where `reward_scale.json` is beside a reward model, RL uses (r / T - mean) / std, and the head
    predicts that from the start: w' = w / (T std), b' = (b / T - mean) / std (document 004, 5.3).

    Args:
        critic: where it begins.
        model: the policy, for what `critic` does not say.

    Raises:
        ConfigError: as `load_value_model`.
        DataError: the scale cannot be read.
    """
    made = load_value_model(critic, model)
    folder = Path(critic.path or model.path).expanduser()
    if (folder / SCALE_FILE).is_file():
        scale = RewardScale.load(folder)
        head = made.value_head
        # Folded in float64, then rounded once to the dtype of the head.
        weight, bias = (param.detach().double().cpu().numpy() for param in (head.weight, head.bias))
        folded = scale.fold_into_head(weight, bias)
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(folded[0]))
            head.bias.copy_(torch.from_numpy(folded[1]))
        logger.info("the critic begins with the reward model %s and its scale", folder)
    return made


def load_value_model(critic: CriticSection, model: ModelSection, *, outputs: int = 1) -> ValueModel:
    """A value model as it is stored, in the dtype and on the device of a policy.

    A checkpoint for sequence or token classification (a reward model) brings its head; a language
    model leaves its own behind and gets one of zeros.

    Args:
        critic: where it begins.
        model: the policy, for what `critic` does not say.
        outputs: numbers a token.

    Raises:
        ConfigError: the checkpoint cannot be loaded, or its head has other outputs.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    path = critic.path or model.path
    check_model_path(path)
    device = pick_device(model.device)
    source = str(quickstart_checkpoint()) if path == QUICKSTART else path
    try:
        kinds = AutoConfig.from_pretrained(source).architectures or [""]
        scored = kinds[0].endswith(SCORED)
        loader: Any = AutoModelForSequenceClassification if scored else AutoModel
        loaded, report = _load(loader, source, getattr(torch, model.dtype))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the critic {path!r} cannot be loaded: {error}") from None
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ConfigError(
            f"the critic {path!r} lacks {len(missing)} weights of {kinds[0] or 'its model'}, "
            f"{missing[0]} among them; they would be random"
        )
    heads = [head for name in _HEADS if (head := getattr(loaded, name, None)) is not None]
    if scored and not isinstance(heads[0] if heads else None, nn.Linear):
        raise ConfigError(f"the critic {path!r} is a {kinds[0]} without a linear {_HEADS[0]!r}")
    body = loaded.base_model if scored else loaded
    head = heads[0] if scored else None
    return ValueModel(body.to(device).eval(), head, outputs=outputs).eval()


def _load(loader: Any, source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Quietly: the head of a language model is left behind on purpose."""
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        return loader.from_pretrained(source, dtype=dtype, output_loading_info=True)
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def save_value_model(
    model: ValueModel,
    tokenizer: Any,
    folder: Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a reward model as `...ForSequenceClassification`, a label for each output.

    That class reads the score at the last token that is not padding, so a token which ends turns
    must not be the one that pads: another special token takes its place, in config and tokenizer.

    Args:
        model: its head has no bias, as in that class.
        tokenizer: its tokenizer.
        folder: to write into.
        weights: all of them, by name, where a backend has divided those of `model`.

    Raises:
        ConfigError: there is no such class for this architecture, or no token to pad with.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(model.config)
    config.num_labels = model.value_head.out_features
    if config.num_labels == len(GAUSSIAN_LABELS):
        # A classifier of two classes has as many outputs, and must not pass for one.
        config.id2label = dict(GAUSSIAN_LABELS)
        config.label2id = {name: index for index, name in GAUSSIAN_LABELS.items()}
    config.pad_token_id = _padding(tokenizer)
    padded = copy.deepcopy(tokenizer)
    padded.pad_token_id = config.pad_token_id
    try:
        with torch.device("meta"):
            shell: Any = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise ConfigError(
            f"transformers has no sequence classification for {type(model.body).__name__}: {error}"
        ) from None
    found = dict(weights) if weights is not None else dict(merged_weights(model))
    if bool(found.pop("value_head.bias").any()):
        raise ConfigError(
            "the head has a bias, which sequence classification models of transformers have not; "
            "begin with a checkpoint whose head has none"
        )
    named = {"score.weight": found.pop("value_head.weight").detach()}
    for name, tensor in found.items():
        named[f"{shell.base_model_prefix}.{name.removeprefix('body.')}"] = tensor.detach()
    shell.save_pretrained(folder, state_dict=named)
    padded.save_pretrained(folder)


def require_padding(tokenizer: Any) -> None:
    """Refuse before training a tokenizer that `save_value_model` would refuse after it.

    Raises:
        ConfigError: no token to pad with.
    """
    _padding(tokenizer)


def _padding(tokenizer: Any) -> int:
    """A special token that ends no turn."""
    ends = {tokenizer.eos_token_id}
    candidates = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id]
    candidates += list(tokenizer.all_special_ids)
    for candidate in candidates:
        if candidate is not None and candidate not in ends:
            return candidate
    raise ConfigError(
        "the tokenizer has no special token besides its end of text, so rows of a reward model "
        "could not be padded; add one (tokenizer.add_special_tokens)"
    )
