"""The prompts of the model: two Jinja2 templates, strict about names, that a config may replace."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, EnvError, choices

SUFFIXES = (".jinja", ".jinja2", ".j2")
"""What a template file may be called."""
VARIABLES = ("problem_statement", "repo", "root", "test_command", "tools", "max_calls")
"""What templates may use; neither the fix nor the names of the tests is among them."""


class PromptTemplate:
    """One template, checked when it is made.

    Example:
        >>> PromptTemplate("Fix {{ repo }}.", "task_prompt").render({"repo": "boltons"})
        'Fix boltons.'
    """

    def __init__(self, text: str, what: str) -> None:
        """Read and check a template.

        Args:
            text: the template itself, or the path of a file that ends in one of `SUFFIXES`.
            what: the argument it came from, for messages.

        Raises:
            ConfigError: no such file, a syntax error, or a name that is none of `VARIABLES`.
        """
        # Imported here: it takes 40 ms, and most runs need no template.
        import jinja2
        import jinja2.meta
        import jinja2.sandbox

        if text.endswith(SUFFIXES) and "\n" not in text:
            path = Path(text).expanduser()
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"env.args.{what}: cannot read {path}: {error}; give a file, or the template "
                    "itself"
                ) from error
            what = f"{what} ({path})"
        jinja = jinja2.sandbox.SandboxedEnvironment(
            undefined=jinja2.StrictUndefined, keep_trailing_newline=False, autoescape=False
        )
        try:
            unknown = jinja2.meta.find_undeclared_variables(jinja.parse(text)) - set(VARIABLES)
            self._template = jinja.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"env.args.{what}, line {error.lineno}: {error.message}") from error
        if unknown:
            name = sorted(unknown)[0]
            raise ConfigError(f"env.args.{what}: unknown variable: {choices(name, VARIABLES)}")
        self._what = what
        self._error = jinja2.TemplateError

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for one task.

        Raises:
            EnvError: the template cannot be rendered with these values.
        """
        try:
            return self._template.render(values).strip()
        except (self._error, TypeError, ValueError) as error:
            raise EnvError(f"env.args.{self._what}: {type(error).__name__}: {error}") from error


def shipped(name: str) -> str:
    """The text of a template of this package."""
    return files("agentrl_envs.swe").joinpath("templates", name).read_text(encoding="utf-8")
