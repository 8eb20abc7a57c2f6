"""Checks that a server started outside of a run can serve it, before the run begins.

Everything that is wrong is found at once, each with what was found, what is needed and what to do.
What matters is tried rather than looked up: ids at the edge of the vocabulary, log-probabilities at
two temperatures, of which only the right kind takes notice, and, where the caller can compute them,
the log-probabilities of a few tokens under the model that will be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentrl.errors import ConfigError, EngineError, EngineRefused
from agentrl.serving.vllm.command import SERVED_NAME
from agentrl.serving.vllm.http import Http, HttpAnswer
from agentrl.serving.vllm.wire import TORN, generate_body, read_generation
from agentrl.types import FinishReason, Generation, SamplingParams
from agentrl.types.finding import Finding, fail

Score = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""`(prompt_ids, ids, temperature)` to the log-probability of each id under the expected model."""

MAX_DIFFERENCE = 0.2
"""Nats, on average over sampled tokens, that another kernel or dtype may cause."""
_COLD, _HOT = 0.5, 2.0
"""vLLM takes no temperature above 2."""
_PROBE_TOKENS = 16
_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Requirements of a run on a server."""

    vocab_size: int
    """Rows of the model's embedding."""
    max_context_tokens: int
    """As `rollout.max_context_tokens`."""
    rotary_limit: int | None = None
    """Longest context with the model's own rotary frequencies; None where they never change."""
    model: str = SERVED_NAME
    """Served model name."""
    tokenizer_size: int = 0
    """Ids of our tokenizer, added tokens included; some tokenizers have more than the embedding,
    and then vLLM does not turn the ids between away, so they are not tried."""
    texts: Mapping[str, Sequence[int]] | None = None
    """Texts and the ids that our tokenizer makes of them, without special tokens of its own."""
    score: Score | None = None
    """Of the weights that the server should have."""
    max_difference: float = MAX_DIFFERENCE
    """Mean absolute difference of log-probabilities that another kernel or dtype may cause."""
    head_dtype: str = "model"
    """As `model.head_dtype`."""
    weight_transfer: str | None = None
    """vLLM's weight-transfer backend; None if the weights stay, or come by `disk`."""


async def check_server(url: str, expected: Expected, *, limit_s: float = 60.0) -> list[Finding]:
    """Everything about the server at `url` that does not fit; empty if all does.

    Args:
        url: as `http://host:port`.
        expected: what is needed.
        limit_s: seconds for each question.
    """
    http = Http(url)
    try:
        return await _ServerProbe(http, expected, limit_s).run()
    finally:
        await http.close()


def require(findings: Mapping[str, Iterable[Finding]]) -> None:
    """Do nothing if no server has findings.

    Raises:
        ConfigError: all findings of all servers.
    """
    lines = [
        f"{url}: {item.name}: {item.detail}; {item.fix}"
        for url, found in findings.items()
        for item in found
    ]
    if lines:
        raise ConfigError("serving.urls: these servers cannot be used:\n  " + "\n  ".join(lines))


class _ServerProbe:
    """One run of all questions to one server."""

    def __init__(self, http: Http, expected: Expected, limit_s: float) -> None:
        self._http = http
        self._expected = expected
        self._limit_s = limit_s
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        cards = await self._models()
        if cards is None:
            return self._findings
        name = self._card(cards)
        missing = await self._endpoints()
        if not missing:
            await self._head()
        await self._tokenizer(name)
        if not missing and not await self._torn() and not await self._paused():
            await self._vocabulary(name)
            await self._log_probs(name)
        if not missing and self._expected.weight_transfer is not None:
            await self._transfer(self._expected.weight_transfer)
        return self._findings

    def _add(self, what: str, *, found: str, needed: str, fix: str) -> None:
        self._findings.append(fail(what, f"found {found}, needed {needed}", fix))

    async def _get(self, path: str) -> HttpAnswer:
        return await self._http.send("GET", path, limit_s=self._limit_s)

    async def _models(self) -> Sequence[Mapping[str, Any]] | None:
        """The served models, or None if this is no vLLM server."""
        needed = "a vLLM server"
        try:
            version, models = await self._get("/version"), await self._get("/v1/models")
        except EngineRefused as error:
            fix = "start it (agentrl serve), or correct the URL"
            self._add("address", found=f"nobody ({error})", needed=needed, fix=fix)
            return None
        except EngineError as error:
            fix = "correct the URL: http://host:port of the API server"
            self._add("address", found=f"no HTTP ({error})", needed=needed, fix=fix)
            return None
        if models.status in (401, 403):
            fix = "start it without --api-key and VLLM_API_KEY, behind a firewall"
            self._add("access", found=models.reason(), needed="an open server", fix=fix)
            return None
        data = models.json()
        cards = data.get("data") if isinstance(data, dict) else None
        if version.status != 200 or models.status != 200 or not isinstance(cards, list):
            found = f"HTTP that answers /version with {version.status}, /v1/models with "
            found += f"{models.status}"
            self._add("address", found=found, needed=needed, fix="correct the URL")
            return None
        return cards

    def _card(self, cards: Sequence[Mapping[str, Any]]) -> str:
        """The name under which to go on; the wanted one, if it is served."""
        wanted = self._expected.model
        by_name = {str(card.get("id")): card for card in cards}
        name = wanted if wanted in by_name else next(iter(by_name), wanted)
        if name != wanted or not by_name:
            fix = f"start it with --served-model-name {wanted}"
            self._add("model name", found=str(sorted(by_name)), needed=repr(wanted), fix=fix)
        length = by_name.get(name, {}).get("max_model_len") or 0
        most = self._expected.rotary_limit
        if most is not None and length > most:
            self._add(
                "context",
                found=f"{length} tokens, for which vLLM takes the long rotary frequencies",
                needed=f"at most {most}, up to which the model's own hold",
                fix=f"start it with --max-model-len {most}",
            )
        if length < self._expected.max_context_tokens:
            self._add(
                "context",
                found=f"{length} tokens",
                needed=f"{self._expected.max_context_tokens} (rollout.max_context_tokens)",
                fix="start it with a larger --max-model-len, or lower the key",
            )
        return name

    async def _endpoints(self) -> bool:
        """Whether endpoints are missing without which nothing else can be tried."""
        missing = False
        if (await self._get("/is_paused")).status == 404:
            missing = True
            self._add(
                "RL endpoints",
                found="no /pause, /resume, /update_weights",
                needed="them",
                fix="start it with VLLM_SERVER_DEV_MODE=1 in its environment",
            )
        # GET is not allowed where the endpoint is, and not found where it is not.
        if (await self._get("/inference/v1/generate")).status == 404:
            missing = True
            self._add(
                "token endpoint",
                found="no /inference/v1/generate",
                needed="it",
                fix="start it with --enable-scale-out",
            )
        return missing

    async def _head(self) -> None:
        """The dtype of its logits, as far as its config names it."""
        info = (await self._get("/server_info?config_format=json")).json()
        found = info.get("vllm_config", {}) if isinstance(info, dict) else {}
        config = found.get("model_config") if isinstance(found, dict) else None
        wanted = self._expected.head_dtype
        if not isinstance(config, dict):
            return
        overrides = config.get("hf_overrides")
        overrides = overrides if isinstance(overrides, dict) else {}
        if others := sorted(overrides.keys() - {"head_dtype"}):
            self._add(
                "config",
                found=f"--hf-overrides of {', '.join(others)}",
                needed="config.json of model.path as it is, which the trainer reads, too",
                fix="start it without, and change config.json of a copy of the model",
            )
        have = overrides.get("head_dtype", "model")
        # Logits of a float32 model are float32 either way.
        if have == wanted or str(config.get("dtype")).endswith("float32"):
            return
        self._add(
            "head",
            found=f"logits in head_dtype {have!r}",
            needed=f"{wanted!r} (model.head_dtype)",
            fix=f'start it with --hf-overrides \'{{"head_dtype": "{wanted}"}}\' (agentrl serve: '
            f"--head-dtype {wanted}), or change the key",
        )

    async def _torn(self) -> bool:
        info = (await self._get("/weight_info")).json()
        if not (isinstance(info, dict) and info.get("weight_version") == TORN):
            return False
        self._add(
            "weights",
            found="torn: an update was cut short, perhaps with the run that made it",
            needed="whole ones",
            fix="restart the server; if a run uses it now, give this one its own",
        )
        return True

    async def _paused(self) -> bool:
        state = (await self._get("/is_paused")).json()
        if not (isinstance(state, dict) and state.get("is_paused")):
            return False
        self._add(
            "state",
            found="paused, perhaps by a run that was killed",
            needed="a server that samples",
            fix=f"if no other run uses it: curl -X POST {self._http.url}/resume",
        )
        return True

    async def _tokenizer(self, name: str) -> None:
        for text, ids in (self._expected.texts or {}).items():
            body = {"model": name, "prompt": text, "add_special_tokens": False}
            answer = await self._http.send(
                "POST", "/tokenize", orjson.dumps(body), limit_s=self._limit_s
            )
            if answer.status != 200:
                return  # a server without a tokenizer works: only ids go to it
            theirs = (answer.json() or {}).get("tokens")
            if theirs != list(ids):
                self._add(
                    "tokenizer",
                    found=f"ids {_short(theirs)} for {text[:40]!r}",
                    needed=_short(ids),
                    fix="serve the model of model.path, with its own tokenizer",
                )
                return

    async def _sample(
        self, name: str, prompt: Sequence[int], temperature: float
    ) -> Generation | HttpAnswer:
        sampling = SamplingParams(temperature=temperature, max_tokens=_PROBE_TOKENS, seed=1)
        body = generate_body(prompt, sampling, model=name, max_tokens=_PROBE_TOKENS)
        answer = await self._http.send(
            "POST", "/inference/v1/generate", body, limit_s=self._limit_s
        )
        if answer.status != 200:
            return answer
        generation = read_generation(answer.body, sampling, start_version=0)
        if generation.finish_reason is FinishReason.ABORT:
            raise EngineError("the server aborted a probe; does another run use it?")
        return generation

    async def _vocabulary(self, name: str) -> None:
        size = self._expected.vocab_size
        first = await self._sample(name, [size - 1], 1.0)
        beyond = None
        if self._expected.tokenizer_size <= size:
            beyond = await self._sample(name, [size], 1.0)
        fix = "serve the model of model.path"
        if isinstance(first, HttpAnswer):
            found = f"{first.reason()} (id {size - 1})"
            self._add("vocabulary", found=found, needed=f"{size} ids", fix=fix)
        elif isinstance(beyond, Generation):
            self._add("vocabulary", found="a larger one", needed=f"{size} ids", fix=fix)

    async def _log_probs(self, name: str) -> None:
        expected = self._expected
        prompt = [(7 * position) % expected.vocab_size for position in range(1, 33)]
        cold, hot = await self._spread(name, prompt, _COLD), await self._spread(name, prompt, _HOT)
        if cold is None or hot is None:
            return
        both = [[top[token] for token in cold.keys() & hot.keys()] for top in (cold, hot)]
        gaps = [max(values, default=0.0) - min(values, default=0.0) for values in both]
        # Divided by the temperature, logits lie 4 times as far apart at 0.5 as at 2; else equally.
        if gaps[0] > 0.01 and gaps[0] < 2 * gaps[1]:
            self._add(
                "log-probs",
                found="those of logits before the temperature divides them",
                needed="those of the distribution that is sampled from",
                fix="start it with --logprobs-mode processed_logprobs",
            )
        elif expected.score is not None:
            await self._weights(name, prompt, expected.score)

    async def _spread(
        self, name: str, prompt: Sequence[int], temperature: float
    ) -> Mapping[int, float] | None:
        """The likeliest tokens after the prompt and their log-probs."""
        sampling = SamplingParams(temperature=temperature, max_tokens=1, seed=1)
        body = orjson.loads(generate_body(prompt, sampling, model=name, max_tokens=1))
        body["sampling_params"]["logprobs"] = 5
        answer = await self._http.send(
            "POST", "/inference/v1/generate", orjson.dumps(body), limit_s=self._limit_s
        )
        if answer.status != 200:
            if not self._findings:
                self._add("turns", found=answer.reason(), needed="tokens", fix="read its log")
            return None
        first = answer.json()["choices"][0]["logprobs"]["content"][0]
        return {entry["token_id"]: entry["logprob"] for entry in first["top_logprobs"]}

    async def _weights(self, name: str, prompt: Sequence[int], score: Score) -> None:
        warm = await self._sample(name, prompt, _TEMPERATURE)
        if isinstance(warm, HttpAnswer):
            return
        ours = score(prompt, warm.ids, _TEMPERATURE)
        pairs = zip(ours, warm.log_probs, strict=True)
        off = _mean(abs(mine - theirs) for mine, theirs in pairs)
        if not off <= self._expected.max_difference:
            self._add(
                "weights",
                found=f"log-probs {off:.2f} nats from those of model.path, on average",
                needed=f"at most {self._expected.max_difference:g}",
                fix="serve the weights of model.path; for a run that resumes, restart the server",
            )

    async def _transfer(self, wanted: str) -> None:
        info = (await self._get("/server_info?config_format=json")).json() or {}
        config = info.get("vllm_config", {}).get("weight_transfer_config") or {}
        if config.get("backend") != wanted:
            option = orjson.dumps({"backend": wanted}).decode()
            self._add(
                "weight transfer",
                found=repr(config.get("backend")),
                needed=repr(wanted),
                fix=f"start it with --weight-transfer-config '{option}' where agentrl is installed",
            )


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held)


def _short(ids: Any) -> str:
    words = list(ids or ())
    return str(words[:8])[:-1] + (", ...]" if len(words) > 8 else "]")
