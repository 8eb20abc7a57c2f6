"""A teacher behind a server: `prompt_logprobs` of vLLM's completions, one request a row.

    POST /v1/completions   {"prompt": [ids], "max_tokens": 1, "prompt_logprobs": K}
    -> choices[0].prompt_logprobs   [null, {"17": {"logprob": -0.3, "rank": 1}, ...}, ...]

Entry t is about token t of the prompt given those before it: the K likeliest tokens with their
ranks, and the token itself, which comes besides where it is none of them. The token that is sampled
after the prompt is thrown away. The server computes log softmax(logits), whatever temperature
a request names, so rows of another temperature are refused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.batch.packing import tokens_of_path
from agentrl.batch.records import BoolArray, IntArray, MicroBatch
from agentrl.config.distill import ServedTeacher
from agentrl.errors import ConfigError, ServedModelError, TrainError
from agentrl.served import ServedModel, ServedSettings
from agentrl.train.distill.records import RowTeacher, TeacherPrompts, TeacherRow

ROW_S = 300.0
"""Seconds for one row, with all attempts and the waits between them."""
ROWS_AT_ONCE = 16
"""Rows that are asked for at once by each trainer rank."""
LARGEST_ANSWER = 1 << 28
"""Bytes of an answer; an entry takes about 70."""
LEAST = -9000.0
"""vLLM writes -9999 for a log-probability of -inf, of a token that its model cannot sample."""
_ROUNDING = 1e-3
PROBES = (
    "def add(a, b):\n    return a + b  # 12345 67890\n",
    "The quick brown fox; naive, caf\u00e9, \u4f60\u597d, \u0441\u043b\u043e\u0432\u043e!",
    '{"name": "x", "args": [1.5e-3, null]}\t\n\n',
)
"""Texts that a server and the policy must encode alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """The answer of `/tokenize`."""

    ids: list[int]
    """Ids of the text."""
    context: int | None
    """Most tokens of a sequence there; None where it does not report it."""


class TeacherServer:
    """A `Teacher` over a server. Rows are asked for several at once; failures are tried again."""

    def __init__(self, section: ServedTeacher, *, top_k: int, vocabulary: int) -> None:
        """Set where the teacher is; nothing is asked yet.

        Args:
            section: address and bounds.
            top_k: K; 0 asks for the sampled tokens alone.
            vocabulary: tokens that the policy has; likeliest tokens beyond belong to the tail.

        Raises:
            ConfigError: the variable with the key is not set, or an address that is none.
        """
        where = "algorithm.distill.teacher"
        try:
            settings = ServedSettings(
                url=section.url,
                model=section.model,
                api_key_env=section.api_key_env,
                timeout_s=ROW_S,
                max_in_flight=ROWS_AT_ONCE,
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        self._served = ServedModel(settings, where=where)
        self._url, self._model = section.url, section.model
        self._top_k, self._vocabulary = top_k, vocabulary

    async def check(self, tokenizer: Any, *, context: int) -> None:
        """Ask the server for ids of a few texts, and for log-probabilities in the form of a row.

        Args:
            tokenizer: of the policy.
            context: most tokens of a row.

        Raises:
            ConfigError: another tokenizer, or rows longer than the server takes.
            ServedModelError: the server cannot be asked, or gives no such log-probabilities.
        """
        where = f"algorithm.distill.teacher: the model {self._model!r} at {self._url}"
        for text in PROBES:
            ours = tokenizer.encode(text, add_special_tokens=False)
            body = {"model": self._model, "prompt": text, "add_special_tokens": False}
            found = await self._served.read("/tokenize", body, _read_tokens)
            theirs = found.ids
            if theirs != list(ours):
                pairs = enumerate(zip(ours, theirs, strict=False))
                at = next((i for i, (one, other) in pairs if one != other), len(ours))
                raise ConfigError(
                    f"{where} has another tokenizer than the policy: of {text!r} it makes ids "
                    f"{theirs[at : at + 3]} at place {at}, expected {list(ours[at : at + 3])}; "
                    "serve a teacher of the policy's tokenizer"
                )
            if found.context is not None and found.context <= context:
                raise ConfigError(
                    f"{where} takes {found.context} tokens, but a row may have {context} "
                    "(rollout.max_context_tokens) and needs one more; serve it with a larger "
                    "--max-model-len"
                )
        probe = np.array(tokenizer.encode(PROBES[0], add_special_tokens=False), dtype=np.int64)
        wanted = np.ones(len(probe) - 1, dtype=np.bool_)
        await self._row(probe, 1, wanted, "of a probe")

    def ask(
        self, micro_batches: Sequence[MicroBatch], *, prompts: TeacherPrompts | None
    ) -> RowTeacher:
        """`ask` as in `Teacher.ask`; not inside an event loop."""
        try:
            return asyncio.run(self._ask(micro_batches))
        except ServedModelError as error:
            raise TrainError(f"the teacher gave no log-probabilities: {error}") from error

    async def _ask(self, micro_batches: Sequence[MicroBatch]) -> RowTeacher:
        wanted = [(micro, index) for micro in micro_batches for index in range(len(micro.rows))]
        rows = await asyncio.gather(*(self._asked_row(*place) for place in wanted))
        return {micro.rows[index]: row for (micro, index), row in zip(wanted, rows, strict=True)}

    async def _asked_row(self, micro: MicroBatch, index: int) -> TeacherRow:
        key, temperature = micro.rows[index], float(micro.temperature_N[index])
        if temperature != 1.0:
            raise TrainError(
                f"row {key} was sampled at temperature {temperature}, but a served teacher gives "
                "log-probabilities at temperature 1 only; set rollout.temperature: 1.0, or take a "
                "teacher of kind checkpoint"
            )
        path = tokens_of_path(micro, int(micro.segment_N[index]))
        own = np.flatnonzero(micro.row_R == index)
        ids = micro.input_ids_T[path]
        return await self._row(ids, len(ids) - len(own), micro.mask_R[own], f"for row {key}")

    async def _row(
        self, ids: IntArray, prompt_length: int, mask_R: BoolArray, what: str
    ) -> TeacherRow:
        body = {
            "model": self._model,
            "prompt": ids.tolist(),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self._top_k,
            "add_special_tokens": False,
        }

        def read(answer: Any) -> TeacherRow:
            return read_row(
                answer,
                ids,
                prompt_length,
                mask_R,
                top_k=self._top_k,
                vocabulary=self._vocabulary,
                what=what,
            )

        return await self._served.read("/v1/completions", body, read, largest=LARGEST_ANSWER)


def read_row(
    answer: Any,
    ids: IntArray,
    prompt_length: int,
    mask_R: BoolArray,
    *,
    top_k: int,
    vocabulary: int,
    what: str,
) -> TeacherRow:
    """The answer to a request for one row.

    Args:
        answer: JSON of the server.
        ids: [prompt + R] that were asked about.
        prompt_length: tokens before the first response position.
        mask_R: [R] bool, True where the numbers are needed.
        top_k: K.
        vocabulary: ids from here on are none of the policy's.
        what: which row, for messages.

    Raises:
        ValueError: the answer is none, or lacks a number; says which.
    """
    try:
        entries = answer["choices"][0]["prompt_logprobs"]
    except (KeyError, IndexError, TypeError):
        text = f"no choices with prompt_logprobs {what}; the server must be vLLM"
        raise ValueError(text) from None
    if not isinstance(entries, list) or len(entries) != len(ids):
        got = f"{len(entries)} entries" if isinstance(entries, list) else repr(entries)
        raise ValueError(
            f"prompt_logprobs {what}: got {got}, expected one for each of {len(ids)} tokens"
        )
    count = len(mask_R)
    sampled_R = np.zeros(count)
    ids_RK, log_probs_RK = np.zeros((count, top_k), dtype=np.int64), np.zeros((count, top_k))
    for position in np.flatnonzero(mask_R).tolist():
        place = prompt_length + position
        found = _entry(entries[place], f"{what} at token {place}")
        token = int(ids[place])
        if token not in found:
            raise ValueError(f"prompt_logprobs {what} at token {place} do not hold id {token}")
        sampled_R[position] = found[token][0]
        if not top_k and sampled_R[position] == -math.inf:
            raise ValueError(
                f"prompt_logprobs {what} at token {place} give id {token}, which the policy "
                "sampled, a log-probability of -inf; serve a teacher that can sample it, or set "
                "algorithm.distill.top_k"
            )
        best = sorted(
            (rank, other, log_prob)
            for other, (log_prob, rank) in found.items()
            if rank <= top_k and other < vocabulary
        )
        if len(best) < top_k:
            raise ValueError(
                f"prompt_logprobs {what} at token {place}: {len(best)} of the {top_k} likeliest "
                f"tokens below id {vocabulary}, which the policy has; lower top_k, or serve a "
                "teacher of the policy's vocabulary"
            )
        for place_of, (_, other, log_prob) in enumerate(best[:top_k]):
            ids_RK[position, place_of], log_probs_RK[position, place_of] = other, log_prob
    return TeacherRow(sampled_R=sampled_R, ids_RK=ids_RK, log_probs_RK=log_probs_RK)


def _entry(value: Any, what: str) -> dict[int, tuple[float, int]]:
    """By id: log-probability, -inf for what cannot be sampled, and rank, of one entry."""
    try:
        found = {int(token): (float(e["logprob"]), int(e["rank"])) for token, e in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"prompt_logprobs {what} are {value!r:.100}, expected ids") from None
    for token, (log_prob, rank) in found.items():
        if not log_prob <= _ROUNDING:
            raise ValueError(
                f"prompt_logprobs {what} give id {token} a log-probability of {log_prob}, expected "
                "a number of at most 0"
            )
        if log_prob < LEAST:
            found[token] = (-math.inf, rank)
    return found


def _read_tokens(answer: Any) -> Tokenized:
    try:
        return Tokenized(
            ids=[int(token) for token in answer["tokens"]],
            context=None if answer.get("max_model_len") is None else int(answer["max_model_len"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("no tokens in the answer of /tokenize; the server must be vLLM") from None
