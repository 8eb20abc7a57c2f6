"""Checks that engines hold the weights that are meant, by the log-probabilities of a few tokens.

A run brings its own weights to its engines; after the first sync of each a few turns are sampled
there and scored by the trainer (`FirstSyncCheck`). Who only samples takes what servers hold. A few
updates of a policy move log-probabilities less than another kernel does, so servers to which any
run has brought weights are refused outright there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError, EngineError, WeightsDoNotFit, some_of
from agentrl.metrics import MetricBag
from agentrl.runtime.engine_wait import Push
from agentrl.serving.vllm.check import MAX_DIFFERENCE, Score
from agentrl.serving.vllm.http import Http
from agentrl.types import Generation, SamplingParams

if TYPE_CHECKING:
    from agentrl.serving import TokenClient

logger = logging.getLogger(__name__)

ANSWER_S = 60.0
"""Seconds a server has to report which weights it holds."""
_OF_THE_START = ("default", "")
"""Names vLLM gives to weights of its own start; a run gives every other name."""
QUANTISED_DIFFERENCE = 1.0
"""Nats as `MAX_DIFFERENCE`, of servers whose options ask for quantised weights or caches."""
_TEXTS = (
    "def add(a, b):",
    "The capital of ",
    "1 + 2 + 3 = ",
    "Dear reader, I",
    "import numpy as",
    "Once upon a ti",
    '{"name": "',
    "Gr\u00fc\u00dfe aus",
)
_PROMPT_TOKENS, _TURN_TOKENS = 16, 16
_PROBE_S = 120.0
"""Seconds that all engines have for their turns, which they take at the same time."""
_TRIES = 2
"""An engine that gave no turns in so many tries is not asked again."""

Turn = tuple[Sequence[int], Sequence[int]]
"""A prompt and the ids that were sampled after it."""
Digests = Mapping[str, Sequence[Any]]
"""Dtype, shape and digest of weights, by name."""


def probe_prompts(tokenizer: Any) -> list[list[int]]:
    """Beginnings of plain texts, so that no token stands for an image or ends a turn."""
    encoded = (tokenizer.encode(text, add_special_tokens=False) for text in _TEXTS)
    return [list(ids[:_PROMPT_TOKENS]) for ids in encoded if ids]


def most_apart(options: Mapping[str, Any]) -> float:
    """The mean difference in nats that engines with these options may have from the trainer."""
    named = {key.lstrip("-").replace("-", "_"): str(value) for key, value in options.items()}
    asked = [named.get(key, "auto") for key in ("quantization", "kv_cache_dtype")]
    quantised = any(value not in ("auto", "None") for value in asked)
    return QUANTISED_DIFFERENCE if quantised else MAX_DIFFERENCE


class FirstSyncCheck:
    """A `Push` that looks after the first sync of each engine whether it holds what was sent."""

    def __init__(
        self,
        push: Push,
        client: TokenClient,
        score: Callable[[Sequence[Turn]], Awaitable[Sequence[Sequence[float]]]],
        sent: Callable[[], Awaitable[Digests]],
        prompts: Sequence[Sequence[int]],
        *,
        shared: bool,
        bound: float = MAX_DIFFERENCE,
    ) -> None:
        """Take all.

        Args:
            push: brings the weights of a version to all engines.
            client: in front of them.
            score: log-probabilities at temperature 1 by the trainer, which is between two steps.
            sent: digests of the weights of a push, asked for only where they may be wrong.
            prompts: what the turns are sampled after.
            shared: whether engines sample from the tensors of the trainer, and pause for it.
            bound: largest mean absolute difference in nats.
        """
        self._push, self._client, self._score, self._sent = push, client, score, sent
        self._prompts, self._shared, self._bound = prompts, shared, bound
        self._known: set[str] = set()
        self._failed: Counter[str] = Counter()

    async def __call__(self, version: int) -> MetricBag:
        """Push; compare each engine that was not compared before.

        Raises:
            SyncError: as the push.
            WeightsDoNotFit: an engine samples from something else than what was sent.
        """
        bag = await self._push(version)
        names = [
            name
            for name in (self._client.active() if self._prompts else ())
            if name not in self._known and self._failed[name] < _TRIES
        ]
        answers = await asyncio.gather(*(self._probe(name, version) for name in names))
        for name, found in zip(names, answers, strict=True):
            await self._compare(name, version, found, bag)
        return bag

    async def _probe(self, name: str, version: int) -> Sequence[Generation]:
        """Turns of an engine, one for each prompt; none where it fails or is too busy."""
        try:
            async with asyncio.timeout(_PROBE_S):
                return await self._sample(name, version)
        except (EngineError, TimeoutError) as error:
            self._failed[name] += 1
            last = self._failed[name] == _TRIES
            logger.log(
                logging.WARNING if last else logging.INFO,
                "%s was not compared with the trainer: %s; it is %s",
                name,
                str(error) or f"it took more than {_PROBE_S:g} s",
                "not asked again" if last else "asked again after the next sync",
            )
            return ()

    async def _compare(
        self, name: str, version: int, answers: Sequence[Generation], bag: MetricBag
    ) -> None:
        if not answers:
            return
        sampled = [(p, a) for p, a in zip(self._prompts, answers, strict=True) if a.ids]
        if any(set(answer.policy_versions) != {version} for _, answer in sampled):
            return  # another sync came between
        scored = await self._trainer_log_probs([(prompt, a.ids) for prompt, a in sampled])
        gaps = [
            abs(ours - theirs)
            for row, (_, answer) in zip(scored, sampled, strict=True)
            for ours, theirs in zip(row, answer.log_probs, strict=True)
        ]
        if not gaps:
            return
        mean = sum(gaps) / len(gaps)
        bag.max("sync/first_difference", mean)
        if not mean <= self._bound:
            raise WeightsDoNotFit(
                f"engine {name} does not sample from the weights of version {version} that were "
                f"sent to it: its log-probabilities of {len(gaps)} tokens are {mean:.2f} nats from "
                f"the trainer's on average (worst {max(gaps):.2f}, at most {self._bound:g} is "
                "another kernel or number type), and nothing that it samples can be trained on. "
                f"{await self._read_back(name)}. Set serving.engine: embedded, or use another "
                "version of vLLM"
            )
        self._known.add(name)

    async def _read_back(self, name: str) -> str:
        """Weights that the engine holds otherwise than they were sent, in words."""
        held: Digests = {}
        try:
            held = await self._client.engine(name).weight_digests()
        except EngineError as error:
            return f"What it holds cannot be read back: {error}"
        sent = await self._sent()
        both = [
            key for key in sent.keys() & held.keys() if list(sent[key][:2]) == list(held[key][:2])
        ]
        if not both:
            return "None of its weights can be read back in the form in which it was sent"
        wrong = sorted(key for key in both if sent[key] != held[key])
        count = f"{len(both)} of {len(sent)} weights can be read back as they were sent"
        if not wrong:
            return f"{count}, and are right; the others are packed or joined there"
        return f"{count}; these differ: {some_of(wrong, 8)}"

    async def _sample(self, name: str, version: int) -> list[Generation]:
        engine = self._client.engine(name)

        async def turn(index: int, prompt: Sequence[int]) -> Generation:
            session = f"first-sync-{version}-{index}"
            sampling = SamplingParams(max_tokens=_TURN_TOKENS, seed=index)
            try:
                return await engine.generate(prompt, sampling, session)
            finally:
                await engine.end_session(session)

        return list(await asyncio.gather(*(turn(i, p) for i, p in enumerate(self._prompts))))

    async def _trainer_log_probs(self, turns: Sequence[Turn]) -> Sequence[Sequence[float]]:
        if not self._shared:
            return await self._score(turns)
        await self._client.pause_all()
        try:
            return await self._score(turns)
        finally:
            await self._client.resume_all()


async def require_first_weights(urls: Sequence[str], *, path: str) -> None:
    """Do nothing if no run has brought weights to any server of `serving.urls`.

    Args:
        urls: of the servers.
        path: of the model that is to be scored, for the message.

    Raises:
        ConfigError: one has.
        EngineError: a server does not answer.
    """
    named = await asyncio.gather(*map(_weight_version, urls))
    lines = [
        f"{url} holds weights of a training run (version {version})"
        for url, version in zip(urls, named, strict=True)
        if version not in _OF_THE_START
    ]
    if lines:
        raise ConfigError(
            "serving.urls: "
            + "; ".join(lines)
            + f", so nobody can say that it would be {path} what is scored; restart "
            "it with that model, or set serving.engine: vllm to have servers started"
        )


async def _weight_version(url: str) -> str:
    http = Http(url)
    try:
        answer = (await http.send("GET", "/weight_info", limit_s=ANSWER_S)).json()
    finally:
        await http.close()
    return str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""


def load_score(section: ModelSection) -> Score:
    """Log-probabilities by the model of `model.path`; on the CPU, since servers fill the GPUs.

    Raises:
        ConfigError: it cannot be loaded.
    """
    import torch

    from agentrl.train.model.pretrained import load_pretrained

    model = load_pretrained(section.model_copy(update={"device": "cpu"})).model

    def score(prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Sequence[float]:
        with torch.inference_mode():
            logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            table_TV = torch.log_softmax(logits_TV.float() / temperature, dim=-1)
        return table_TV[torch.arange(len(ids)), torch.tensor(list(ids))].tolist()

    return score
