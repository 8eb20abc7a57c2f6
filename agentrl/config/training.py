"""How the weights are changed, and by how many processes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.config.base import FiniteSection


class LoraSection(FiniteSection):
    """Train low-rank adapters (peft) instead of all weights."""

    rank: int = Field(default=0, ge=0)
    """Rank of the adapters; 0 trains all weights."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapters' output is scaled by this over the rank."""
    targets: tuple[str, ...] = Field(default=("all-linear",), min_length=1)
    """Names of the modules that get one; `all-linear` is every linear layer but the head."""
    sync: Literal["adapters", "merged"] = "adapters"
    """What goes to vLLM servers: `adapters` alone, which they merge into the model they were
    started with, or all weights. The `nccl` backend always sends all."""

    @field_validator("targets")
    @classmethod
    def _all_or_some(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if "all-linear" in targets and len(targets) > 1:
            raise ValueError(
                f"targets is {list(targets)}, but all-linear stands for all of them; leave it "
                "alone, or name the layers without it"
            )
        return targets


class TrainSection(FiniteSection):
    """The optimizer and its budget."""

    steps: int = Field(default=20, ge=0)
    """Optimizer steps of the run; 0 only evaluates."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Time of the whole run in minutes, evaluations included: no step begins that would leave no
    time for the final evaluation, but one always does. None trains all steps."""
    epochs_per_batch: int = Field(default=1, ge=1)
    """Passes over the rollouts of one step."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per pass."""
    micro_batch_tokens: int = Field(default=4096, ge=16)
    """Token budget of one forward and backward pass; never changes the result."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up; `linear` and `cosine` would be zero one step after the last."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay on matrices."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.95,
    )
    """AdamW moments."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm; 1e9 leaves them as they are."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` orthogonalises the updates of matrices inside the layers; AdamW has the rest."""
    backend: Literal["torch", "fsdp2", "deepspeed"] = "torch"
    """Who holds the model: `torch` a copy on every rank (data parallel if there are several),
    `fsdp2` and `deepspeed` a part on every rank. How many there are is `ray.trainer_ranks`."""
    zero_stage: Literal[0, 1, 2, 3] = 2
    """What `deepspeed` cuts up: nothing, optimizer, gradients too, parameters too."""
    offload: bool = False
    """`fsdp2` and `deepspeed` keep parameters and optimizer in main memory."""
    prefix_sharing: bool = True
    """Compute tokens that rows of a group begin with in common once; never changes the result."""
    lora: LoraSection = LoraSection()
    """Adapters instead of all weights."""

    @model_validator(mode="after")
    def _whole_matrices(self) -> TrainSection:
        if self.lora.rank and self.backend != "torch":
            raise ValueError(
                f"train.lora.rank is {self.lora.rank}, but train.backend {self.backend} cuts the "
                "model up, and adapters are trained on a whole one; set train.backend: torch"
            )
        return self
