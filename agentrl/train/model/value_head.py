"""A language model's body with one number per token on top: what a rollout is worth from there.

The value of a response token is read at the position that predicts it, so it knows everything
before the token and not the token itself.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import CriticSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.models.device import pick_device
from agentrl.models.parts import device_of, fill, load_weights
from agentrl.models.source import SCORED, check_model_path, loadable, stored_config
from agentrl.models.vision.reader import VisionReader, reader_of, share_reader
from agentrl.reward.scale import SCALE_FILE, RewardScale, load_scales
from agentrl.train.model.kernels.choose import use_kernel
from agentrl.train.model.logprobs import hidden_states
from agentrl.train.model.lora import add_adapters
from agentrl.train.model.proof import ProofRows, probe_numbers

logger = logging.getLogger(__name__)

_HEADS = ("score", "classifier")
_OTHER_HEADS = (
    "begin with a language model or a reward model of as many (objective.ensemble of an "
    "ensemble_mode heads)"
)
GAUSSIAN_LABELS = {0: "mean", 1: "deviation"}
"""`id2label` of a reward model that gives a Gaussian; the deviation is before `purm_deviation`."""


def head_labels(heads: int) -> dict[int, str]:
    """`id2label` of a reward model with several heads, each of which gives one score."""
    return {number: f"head_{number}" for number in range(heads)}


def heads_of(config: Any) -> int:
    """Heads of a reward model, by its labels; 1 for any other model.

    Args:
        config: of `transformers`.
    """
    labels = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    return len(labels) if len(labels) > 1 and labels == head_labels(len(labels)) else 1


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

    def __init__(
        self, body: Any, head: nn.Linear | None = None, *, outputs: int = 1, heads: int = 1
    ) -> None:
        """Put a head on a body.

        Args:
            body: a `transformers` model without a head of its own.
            head: [O, E]; None begins with zeros, so that all values are 0 and their gradient
                reaches the head alone in the first update.
            outputs: O, numbers a token: 1 value; 2 where a reward model gives a mean and a
                deviation; K where it has K heads.
            heads: K, of an ensemble on this body; 1 is none.

        Raises:
            ConfigError: a head of another shape; its outputs are not one value.
        """
        super().__init__()
        param = next(body.parameters())
        width = body.config.get_text_config().hidden_size if head is None else head.in_features
        if head is not None and head.out_features != outputs:
            raise ConfigError(
                f"the head of the checkpoint has {head.out_features} outputs, expected {outputs}; "
                f"give a model that was trained with num_labels={outputs}"
            )
        self.body = body
        self.heads = heads
        """K heads, each with a score of its own; 1 for a model that is no ensemble."""
        self.value_head = ValueHead(
            width,
            outputs,
            device=device_of(body),
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

    @property
    def agentrl_images(self) -> VisionReader | None:
        """Reader of the images that the body sees; None for a body that reads text only."""
        return reader_of(self.body)

    def get_input_embeddings(self) -> nn.Module:
        """Of the body, as `transformers` models have it."""
        return self.body.get_input_embeddings()

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """As `transformers` models have it."""
        self.body.gradient_checkpointing_enable(*args, **kwargs)

    def forward(self, batch: TensorBatch | ProofRows) -> Tensor:
        """[R] The value before each trained token, 0 elsewhere. Call inside `packed_attention`.

        [R, O] with several outputs.
        """
        if isinstance(batch, ProofRows):
            return probe_numbers(self, batch)
        hidden_AE = hidden_states(self, batch)[batch.source_A]
        found_RO = _placed(self.value_head(hidden_AE), batch)
        return found_RO[:, 0] if found_RO.shape[1] == 1 else found_RO

    def values_and_features(self, batch: TensorBatch) -> tuple[Tensor, Tensor]:
        """[R, O] Values as `forward` gives them, and [R, E] what the head reads for them."""
        hidden_AE = hidden_states(self, batch)[batch.source_A]
        return _placed(self.value_head(hidden_AE), batch), _placed(hidden_AE, batch)


def _placed(numbers_AX: Tensor, batch: TensorBatch) -> Tensor:
    """[R, X] Numbers at their response tokens, 0 elsewhere."""
    shape = (len(batch.mask_R), numbers_AX.shape[1])
    zeros_RX = torch.zeros(shape, dtype=numbers_AX.dtype, device=numbers_AX.device)
    return zeros_RX.index_put((batch.index_A,), numbers_AX)


def load_critic(
    critic: CriticSection,
    model: ModelSection,
    *,
    images: VisionReader | None = None,
    in_parts: bool = False,
) -> ValueModel:
    """The critic that a run begins with: `load_value_model`, in the unit of the reward.

    Where `reward_scale.json` is beside a reward model, RL uses (r / T - mean) / std, and the head
    predicts that from the start: w' = w / (T std), b' = (b / T - mean) / std (document 004, 5.3).
    Of several heads it is the mean of what each of them would be. Adapters begin as nothing.

    Args:
        critic: where it begins.
        model: the policy, for what `critic` does not say.
        images: of the policy, whose images the critic reads, too; None for a model of text.
        in_parts: leave the body's weights in their files, for ranks that divide them.

    Raises:
        ConfigError: as `load_value_model` and `add_adapters`, or a critic that cannot read images,
            or not those of the policy.
        DataError: the scale cannot be read.
    """
    path = critic.path or model.path
    made = _in_reward_unit(critic, model, path, in_parts=in_parts)
    if images is not None:
        share_reader(made.body, images, who=f"critic.path {path!r}")
    if critic.adapters is not None:
        add_adapters(made.body, critic.adapters, base=path, key="critic.lora")
    return made


def _in_reward_unit(
    critic: CriticSection, model: ModelSection, path: str, *, in_parts: bool
) -> ValueModel:
    heads = _stored_heads(path)
    made = load_value_model(critic, model, outputs=heads, heads=heads, in_parts=in_parts)
    folder = Path(path).expanduser()
    scaled = (folder / SCALE_FILE).is_file()
    if not scaled and heads == 1:
        return made
    scales = load_scales(folder, heads) if scaled else (RewardScale(),) * heads
    # Folded in float64, then rounded once to the dtype of the head.
    old = made.value_head
    weight_KE, bias_K = (param.detach().double().cpu().numpy() for param in (old.weight, old.bias))
    rows = [s.fold_into_head(w, b) for s, w, b in zip(scales, weight_KE, bias_K, strict=True)]
    head = nn.Linear(old.in_features, 1, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(np.mean([weight for weight, _ in rows], axis=0)))
        head.bias.fill_(float(np.mean([bias for _, bias in rows])))
    logger.info(
        "the critic begins with the reward model %s%s", folder, " and its scale" if scaled else ""
    )
    return ValueModel(made.body, head).eval()


def _stored_heads(path: str) -> int:
    """Heads of a checkpoint; 1 where it cannot be read, which is reported on loading."""
    check_model_path(path, key="critic.path")
    try:
        return heads_of(stored_config(path))
    except (OSError, ValueError):
        return 1


def load_value_model(
    critic: CriticSection,
    model: ModelSection,
    *,
    outputs: int = 1,
    heads: int = 1,
    in_parts: bool = False,
) -> ValueModel:
    """A value model as it is stored, in the dtype and on the device of a policy.

    A checkpoint for sequence or token classification (a reward model) brings its head; a language
    model leaves its own behind and gets one of zeros.

    Args:
        critic: where it begins.
        model: the policy, for what `critic` does not say.
        outputs: numbers a token.
        heads: of an ensemble; then there are as many outputs.
        in_parts: leave the body's weights in their files, for ranks that divide them.

    Raises:
        ConfigError: the checkpoint cannot be loaded, or its head has other outputs.
    """
    from transformers import AutoModel, AutoModelForSequenceClassification

    path = critic.path or model.path
    source = loadable(path, key="critic.path" if critic.path else "model.path")
    device = pick_device(model.device)
    who = f"the critic {path!r}"
    try:
        config = stored_config(source)
        kinds = config.architectures or [""]
        scored = kinds[0].endswith(SCORED)
        loader: Any = AutoModelForSequenceClassification if scored else AutoModel
    except (OSError, ValueError) as error:
        raise ConfigError(f"{who} cannot be loaded: {error}") from None
    dtype = getattr(torch, model.dtype)
    loaded = load_weights(
        loader, source, who=who, body=True, dtype=dtype, device=device, in_parts=in_parts
    )
    found = {name: head for name in _HEADS if (head := getattr(loaded, name, None)) is not None}
    if scored and not isinstance(next(iter(found.values()), None), nn.Linear):
        raise ConfigError(f"the critic {path!r} is a {kinds[0]} without a linear {_HEADS[0]!r}")
    if scored and heads_of(config) != heads:
        raise ConfigError(
            f"the checkpoint {path!r} is a reward model of {heads_of(config)} heads, expected "
            f"{heads}; {_OTHER_HEADS}"
        )
    body = loaded.base_model if scored else loaded
    head = _unrounded(source, *next(iter(found.items()))) if scored else None
    use_kernel(body, model.attention)
    return ValueModel(body.eval(), head, outputs=outputs, heads=heads).eval()


def _unrounded(source: str, name: str, head: nn.Linear) -> nn.Linear:
    """The head in the dtype of its file, where that is here: the body's dtype would round it."""
    fill(head)
    for file in sorted(Path(source).expanduser().glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for part in sorted({f"{name}.weight", f"{name}.bias"} & set(stored.keys())):
                setattr(head, part.removeprefix(f"{name}."), nn.Parameter(stored.get_tensor(part)))
    return head
