"""A sampler whose turns come from an API: ids in, messages out and back, ids again.

The ids stand for text only: the API gave none, and no log-probabilities. They are good for limits
and for reading, and `not_sampled` says so in every row before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.chat import ChatFormat
from agentrl.engine import refuse_images, turn_held
from agentrl.errors import EngineError, ServedModelError
from agentrl.runtime.sampling.api.transcript import read_transcript
from agentrl.runtime.sampling.api.wires import SpokenAnswer, read_turn, turn_body
from agentrl.served import ServedModel, ServedSettings
from agentrl.served.wire import endpoint
from agentrl.types import (
    FinishReason,
    Generation,
    ImageSpan,
    SamplingParams,
    Trajectory,
    TrajectoryGroup,
    usage,
)
from agentrl.types.usage import counting_served, spend

_FULL = ("context_length", "context length", "prompt is too long", "too many tokens")
"""Words of servers whose context is full."""


class ApiSampler:
    """Asks an API for turns; a `Generator`."""

    def __init__(self, settings: ServedSettings, chat: ChatFormat) -> None:
        """Ask nothing yet.

        Args:
            settings: the API, and the bounds within which it is asked.
            chat: built over `transcript_tokenizer`.

        Raises:
            ConfigError: the variable with the key is not set.
        """
        self.spent: dict[str, float] = {}
        """Use of the API so far, by the names of `agentrl.types.usage.SERVED`; that of other served
        models, as judges, is not part of it."""
        self._settings = settings
        self._chat = chat
        self._served = ServedModel(settings, where="--api")
        root = settings.url.rstrip("/").removesuffix("/v1")
        self._path = endpoint(settings).removeprefix(root)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Sample one turn; see `Generator.generate`. Log-probabilities are 0 and mean nothing.

        Raises:
            EngineError: the API could not be asked in all attempts, or refused the request.
        """
        refuse_images(self._settings.model, images)
        transcript = read_transcript(self._chat, prompt_ids)
        body = turn_body(self._settings, transcript, sampling)
        with counting_served() as spent:
            try:
                with turn_held():  # the limits of the request hold here
                    answer = await self._served.read(
                        self._path, body, lambda said: read_turn(self._settings, said)
                    )
            except ServedModelError as error:
                raise _failure(error) from error
            finally:
                for name, amount in spent.items():
                    self.spent[name] = self.spent.get(name, 0.0) + amount
        for name, amount in spent.items():
            spend(name, amount)
        return self._generation(answer, sampling)

    async def end_session(self, session_id: str) -> None:
        """Nothing is kept for a session."""

    def _generation(self, answer: SpokenAnswer, sampling: SamplingParams) -> Generation:
        """The text as ids, shortened to the limit of the turn in tokens of the run."""
        chat = self._chat
        text, stop_id = answer.text, chat.stop_token_ids[0]
        for token in chat.action_stop_ids:
            stop = chat.decode_raw([token])
            before, found, _ = text.partition(stop)
            if found:
                text, stop_id = before, token
        ids = (*chat.encode_plain(text), stop_id)
        finish = FinishReason.STOP
        if stop_id == chat.stop_token_ids[0] and answer.cut_off and len(ids) > 1:
            ids, finish = ids[:-1], FinishReason.LENGTH
        if len(ids) > sampling.max_tokens:
            ids, finish = ids[: sampling.max_tokens], FinishReason.LENGTH
        return Generation(
            ids=ids,
            log_probs=(0.0,) * len(ids),
            finish_reason=finish,
            policy_versions=(0,) * len(ids),
        )


def _failure(error: ServedModelError) -> EngineError:
    text = str(error)
    if any(word in text.lower() for word in _FULL):
        text += (
            "; the conversation is longer than this model takes: set rollout.max_context_tokens "
            "below its context, so that the environment grades what there is"
        )
    return EngineError(text)


def not_sampled(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group with an empty mask in every row: nothing in it can be trained on.

    Its ids are the texts in tokens of the run's tokenizer, not what the API sampled.
    """
    return replace(group, trajectories=tuple(map(_without_actions, group.trajectories)))


def _without_actions(row: Trajectory) -> Trajectory:
    length = len(row.response_ids)
    return replace(
        row,
        response_mask=(0,) * length,
        rollout_log_probs=(0.0,) * length,
        policy_versions=(-1,) * length,
    )


def used(spent: dict[str, float]) -> dict[str, float]:
    """Use of the API with every name, 0 where nothing was spent."""
    return {name: spent.get(name, 0.0) for name in sorted(usage.SERVED)}
