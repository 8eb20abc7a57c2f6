"""Optimizer, memory and processes of the trainer."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentrl.config.base import FiniteSection, KindSection, Names, OneOf


class AdapterSection(FiniteSection):
    """Low-rank adapters (peft), trained instead of all weights; a number alone is their rank."""

    bare: ClassVar[str] = "rank"

    rank: int = Field(ge=1)
    """Rank of the adapters, which are trained instead of all weights."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapters' output is scaled by this over the rank."""
    rslora: bool = False
    """Scale by alpha over the square root of the rank instead (rank-stabilised LoRA)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that a gradient is formed without. Ratios and metrics are those
    of the policy without dropout, which costs a second forward; masks follow from the tokens of a
    micro-batch, so its size changes them. Needs `train.backend: torch`."""
    targets: tuple[str, ...] = Field(default=("all-linear",), min_length=1)
    """Names of the modules that get one; `all-linear` is every linear layer but the head."""

    @field_validator("rank", mode="before")
    @classmethod
    def _some(cls, rank: Any) -> Any:
        if rank == 0:
            raise ValueError("a rank of 0 would be no adapters; leave lora out for that")
        return rank

    @field_validator("targets")
    @classmethod
    def _all_or_some(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if "all-linear" in targets and len(targets) > 1:
            raise ValueError(
                f"targets is {list(targets)}, but all-linear stands for all of them; leave it "
                "alone, or name the layers without it"
            )
        return targets


class LoraSection(AdapterSection):
    """Adapters of the policy, and the way that they take to its servers."""

    sync: Literal["adapters", "merged"] = "adapters"
    """What goes to vLLM servers: `adapters` alone, which they merge into the model they were
    started with, or all weights. The `nccl` backend always sends all."""
    base: Literal["nf4"] | None = None
    """`nf4` keeps the weights below the adapters in 4 bits (QLoRA, bitsandbytes); trainer and
    embedded engine compute with the same ones, servers get them dequantised and merged. Needs
    `train.backend: torch`. None leaves them in `model.dtype`."""
    start: Annotated[str | None, Names.FOLDER] = None
    """Folder of adapters in peft's format that the run begins with, of the same rank, alpha and
    targets. A reference (KL) stays `model.path` without them. None begins at the model itself."""


class TorchTraining(KindSection):
    """A whole model on every rank, data parallel if there are several."""

    divides_weights: ClassVar[bool] = False
    """A rank holds a part of the weights, and not only of gradients or moments."""
    kind: Literal["torch"] = "torch"
    """What holds the model: `torch` a copy on every rank (data parallel if there are several)."""
    lanes: int | None = Field(default=None, ge=1)
    """Micro-batches that a CPU computes at once, in threads that do not wait for each other. Each
    but the first holds a float32 gradient and the activations of a micro-batch. None is as many as
    there are cores, at most 4, as long as the gradients take 2 GiB at most, and one with several
    ranks; with other lanes sums are rounded in another order. A GPU has one."""


class Fsdp2Training(KindSection):
    """A part of the model on every rank, by PyTorch."""

    divides_weights: ClassVar[bool] = True
    """A rank holds a part of the weights, and not only of gradients or moments."""
    kind: Literal["fsdp2"] = "fsdp2"
    """`fsdp2` a part on every rank."""
    offload: bool = False
    """Keep parameters and optimizer in main memory."""


class DeepspeedTraining(KindSection):
    """A part of the model on every rank, by DeepSpeed."""

    kind: Literal["deepspeed"] = "deepspeed"
    """`deepspeed` a part on every rank, as `zero_stage` asks. With `runtime: ray`,
    `runtime.trainer_ranks` says how many ranks there are."""
    zero_stage: Literal[0, 1, 2, 3] = 2
    """What is divided among the ranks: nothing, optimizer, gradients too, parameters too."""
    offload: bool = False
    """Keep parameters and optimizer in main memory."""

    @property
    def divides_weights(self) -> bool:
        """Return true if a rank holds a part of the weights."""
        return self.zero_stage == 3


TrainBackendSection = Annotated[
    TorchTraining | Fsdp2Training | DeepspeedTraining,
    OneOf(TorchTraining, Fsdp2Training, DeepspeedTraining),
]
"""What holds the model, and how many parts it is in."""


class TrainSection(FiniteSection):
    """The optimizer and its budget."""

    steps: int = Field(default=20, ge=0)
    """Optimizer steps of the run; 0 only evaluates."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Time of the whole run in minutes, evaluations included: no step begins that would leave no
    time for the final evaluation, by what steps and evaluations took before. It ends at most 5 %
    later, unless one takes a quarter longer than expected. None trains all steps."""
    epochs_per_batch: int = Field(default=1, ge=1)
    """Passes over the rollouts of one step."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per pass."""
    micro_batch_tokens: int = Field(default=4096, ge=16)
    """Token budget of one forward and backward pass; changes no result but the masks of
    `lora.dropout`."""
    micro_batch_image_tokens: int | None = Field(default=None, ge=1)
    """Most placeholders of images in such a pass, an image that several rows show counted once; a
    rollout of more has a pass to itself. Bounds the memory of the vision tower; null does not."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up; `linear` and `cosine` would be zero one step after the last."""
    warmup_steps: int = Field(default=0, ge=0)
    """Training steps of linear warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay on matrices."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.95,
    )
    """AdamW moments."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm; 1e9 leaves them as they are."""
    optimizer: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """`muon` orthogonalises the updates of matrices inside the layers; AdamW has the rest.
    `adamw_8bit` keeps moments in 8 bits (bitsandbytes; `train.backend: torch` only)."""
    backend: TrainBackendSection = TorchTraining()
    """What holds the model."""
    prefix_sharing: bool = True
    """Compute tokens that rows of a group begin with in common once; never changes the result."""
    lora: LoraSection | None = None
    """Adapters instead of all weights; None trains all weights."""
    freeze: tuple[str, ...] = ()
    """Parts that stay as they are: `vision_tower` of a model that reads images, or patterns of the
    names of parameters, as in `model.layers.0`."""

    @model_validator(mode="after")
    def _adapters_or_parts(self) -> Self:
        if self.lora is not None and self.freeze:
            raise ValueError(
                f"freeze is {list(self.freeze)}, but with train.lora all weights of the model stay "
                "as they are; remove one of the two (train.lora.targets says where adapters are)"
            )
        return self

    @model_validator(mode="after")
    def _whole_only(self) -> Self:
        if self.optimizer == "adamw_8bit" and self.backend.kind != "torch":
            raise ValueError(
                f"optimizer is adamw_8bit, whose blocks of moments backend {self.backend.kind} "
                "cannot divide; set train.optimizer: adamw, or train.backend: torch"
            )
        if self.lora is not None and self.lora.base and self.backend.kind != "torch":
            raise ValueError(
                f"lora.base is {self.lora.base}, whose blocks of weights backend "
                f"{self.backend.kind} cannot divide; leave train.lora.base out, or set "
                "train.backend: torch"
            )
        if self.lora is not None and self.lora.dropout and self.backend.kind != "torch":
            raise ValueError(
                f"lora.dropout is {self.lora.dropout}, which backend {self.backend.kind} does not "
                "have: it forms one forward per gradient; set train.lora.dropout: 0, or "
                "train.backend: torch"
            )
        return self

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of a training step, those of empty minibatches included."""
        return self.minibatches * self.epochs_per_batch


class FitTrainSection(TrainSection):
    """The optimizer and its budget."""

    steps: int = Field(default=0, ge=0)
    """Most optimizer steps; 0 is as many as `data.epochs` take."""

    @model_validator(mode="after")
    def _one_update(self) -> FitTrainSection:
        for name in ("epochs_per_batch", "minibatches"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but a fit makes one update a step; set "
                    "data.examples_per_step and data.epochs"
                )
        return self


def sharding_refusal(train: TrainSection, *, runtime: str, engine: str) -> str | None:
    """Why no trainer that divides the model can be made of these settings; None if one can.

    Args:
        train: the optimizer and the backend.
        runtime: kind of the runtime.
        engine: kind of the engines.
    """
    backend = train.backend.kind
    if backend == "torch":
        return None
    places = []
    if runtime != "ray":
        places.append(
            f"its ranks are processes of their own, and runtime is {runtime}: set runtime: ray "
            "(one rank will do)"
        )
    if engine == "embedded":
        places.append(
            "serving.engine embedded samples from the very model that is trained: set "
            "serving.engine: vllm"
        )
    if not places:
        return None
    return (
        f"train.backend {backend} divides the model among ranks; {'; and '.join(places)}; or set "
        "train.backend: torch"
    )
