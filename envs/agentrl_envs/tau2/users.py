"""Users that the agent talks to: one by rule, or one that a language model plays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from agentrl.errors import EnvError
from agentrl.served import ServedModel, ServedSettings
from agentrl.served.specials import clean
from agentrl_envs.tau2.tasks import package_data

_GREETING = "Hi! How can I help you today?"
_ENDS = ("###STOP###", "###TRANSFER###")
_GIVES_UP = "###OUT-OF-SCOPE###"
_TIMEOUT_S = 50.0
_TRIES = 3
_IN_FLIGHT = 256


class User(ABC):
    """The other side of one conversation."""

    @abstractmethod
    async def reply(self, said: str, *, acted: bool) -> str | None:
        """The user's next message; None to hang up.

        Args:
            said: by the agent; empty before it has said anything.
            acted: whether the agent called a tool since the user last spoke.

        Raises:
            EnvError: the user cannot be asked; none of the model's doing.
        """


class ScriptedUser(User):
    """Writes all it knows at once, agrees to everything, and hangs up when nothing more is done.

    Easier than a person: nothing has to be asked for. It needs no second model and says the same
    in every run.
    """

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        """Take tau2's instructions to its user."""
        self._scenario = scenario
        self._idle = 0

    async def reply(self, said: str, *, acted: bool) -> str | None:
        """The next message; see `User.reply`."""
        if not said:
            return self._opening()
        self._idle = 0 if acted else self._idle + 1
        if self._idle > 1:
            return None
        return (
            "Yes, I agree. Please do now whatever my notes ask for, and tell me what they want to "
            "know. I have nothing to add."
        )

    def _opening(self) -> str:
        names = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
        notes = [str(self._scenario.get(name) or "").strip() for name in names]
        return "Hello. I wrote down for myself what this is about:\n\n" + "\n".join(
            f"> {line}" for note in notes for line in note.splitlines() if line.strip()
        )


class ServedUser(User):
    """A language model behind any server that speaks OpenAI's chat completions.

    It receives tau2's guidelines and scenario, and ends with one of tau2's marks. What it says is
    not the agent's doing, so a server that fails costs the rollout and not a reward.
    """

    def __init__(
        self,
        scenario: Mapping[str, Any],
        *,
        url: str,
        model: str,
        api_key_env: str = "",
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Set where the model is; see `Tau2Task`.

        Raises:
            ConfigError: the named variable with the key is not set.
        """
        guidelines = package_data().parent / "user_simulator" / "simulation_guidelines.txt"
        lines = "\n".join(f"{name}: {value}" for name, value in scenario.items() if value)
        self._messages = [
            {
                "role": "system",
                "content": f"{guidelines.read_text('utf-8')}\n\n<scenario>\n{lines}\n</scenario>",
            }
        ]
        settings = ServedSettings(
            url=url,
            model=model,
            api_key_env=api_key_env,
            temperature=temperature,
            seed=seed,
            timeout_s=_TIMEOUT_S,
            tries=_TRIES,
            max_tokens=0,
            max_in_flight=_IN_FLIGHT,
        )
        self._name = model
        self._model = ServedModel(settings, where="Tau2Task user")

    async def reply(self, said: str, *, acted: bool) -> str | None:
        """The next message; see `User.reply`."""
        # To the model that plays the user, the agent is the other side.
        content = clean(said, self._name) or _GREETING
        self._messages.append({"role": "user", "content": content})
        text = await self._completion()
        if _GIVES_UP in text:
            raise EnvError(
                f"the simulated user gave up with {_GIVES_UP}: its scenario does not say what the "
                "agent wants to know, so there is no verdict; leave such a task out"
            )
        if any(mark in text for mark in _ENDS):
            return None
        self._messages.append({"role": "assistant", "content": text})
        return text

    async def _completion(self) -> str:
        try:
            return await self._model.complete(self._messages)
        except EnvError as error:
            raise EnvError(
                f"{error}. Check user_url (it ends in /v1 as a rule) and user_model"
            ) from error
