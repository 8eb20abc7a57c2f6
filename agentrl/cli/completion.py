"""`agentrl completion`: a script that completes commands, options, keys and files in a shell.

The script holds every word, so a press of the tab key starts no Python: it is made once, and again
after an upgrade.
"""

from __future__ import annotations

import inspect
import shlex
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

from agentrl.cli import HELP
from agentrl.config import RunConfig, leaves
from agentrl.config.base import Section
from agentrl.config.fit import FitConfig


class Shell(StrEnum):
    """A shell that is completed for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SAVED = {
    Shell.BASH: "${XDG_DATA_HOME:-~/.local/share}/bash-completion/completions/agentrl",
    Shell.ZSH: "a file _agentrl in a folder of $fpath",
    Shell.FISH: "~/.config/fish/completions/agentrl.fish",
}
"""Places where a shell looks for the script."""


@dataclass(slots=True, kw_only=True)
class CommandWords:
    """Every word that may follow something, by the commands before it, as in `traj show`."""

    words: dict[str, list[str]] = field(default_factory=dict)
    """Commands and options that may stand there."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """By option, as in `traj export --format`: its choices; none where any text may stand."""
    keys: dict[str, str] = field(default_factory=dict)
    """`run` or `fit` for commands that take keys of such a file."""


def command(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(help="The shell to complete for.")],
) -> None:
    """Print a script that makes a shell complete commands, options, keys and files.

    For this shell alone: source <(agentrl completion bash), or agentrl completion fish | source.
    For all: save it where the first line says; do that again after an upgrade.
    """
    found = CommandWords()
    _collect(context.find_root().command, "", found)
    typer.echo(_script(shell, found), nl=False)


def _collect(node: Any, path: str, found: CommandWords) -> None:
    """Add the words of a command and of those below it."""
    below: Mapping[str, Any] = getattr(node, "commands", {})
    found.words[path] = [name for name, child in below.items() if not child.hidden]
    for parameter in node.params:
        if parameter.param_type_name == "argument":
            if parameter.name == "overrides":
                found.keys[path] = "fit" if path == "fit" else "run"
            found.words[path] += _choices(node.callback, parameter)
            continue
        if parameter.hidden:
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        found.words[path] += names
        if not parameter.is_flag:
            chosen = _choices(node.callback, parameter)
            found.values |= {f"{path} {name}".strip(): chosen for name in names}
    found.words[path].append("--help")
    if below:  # `agentrl help traj show`
        found.words[f"{HELP} {path}".strip()] = list(below)
    for name, child in below.items():
        if name != HELP:
            _collect(child, f"{path} {name}".strip(), found)


def _choices(callback: Any, parameter: Any) -> list[str]:
    """The values of a parameter that is of an enumeration, or whose help is `N|first|last`."""
    hint = typing.get_type_hints(inspect.unwrap(callback)).get(parameter.name)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    values = [
        str(value)
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, StrEnum)
        for value in kind
    ]
    shown = (parameter.metavar or "").split("|")
    return values or [word for word in shown[len(shown) == 1 :] if word.islower()]


def _keys(root: type[Section]) -> list[str]:
    """Sections, with their dot, and keys with `=`; of names of the user's choice what precedes."""
    names = dict[str, None]()
    for key in leaves(root):
        known, named, _ = key.name.partition(".NAME")
        section = known.rpartition(".")[0]
        names |= {f"{section}.": None} if section else {}
        names[f"{known}." if named else f"{known}="] = None
    return list(names)


def _script(shell: Shell, found: CommandWords) -> str:
    first = f"# Completion of agentrl for {shell}; save it as {_SAVED[shell]}\n"
    tables = {
        "words": found.words,
        "values": found.values,
        "keys": {path: [kind] for path, kind in found.keys.items()},
        "keys_of": {"run": _keys(RunConfig), "fit": _keys(FitConfig)},
    }
    if shell is Shell.FISH:
        lines = [line for name, table in tables.items() for line in _fish(name, table)]
        return first + "\n".join(lines) + _FISH
    lines = [line for name, table in tables.items() for line in _posix(name, table)]
    head = "#compdef agentrl\n" if shell is Shell.ZSH else ""
    return head + first + "\n".join(lines) + (_ZSH if shell is Shell.ZSH else _BASH)


def _posix(name: str, table: Mapping[str, list[str]]) -> Iterator[str]:
    """A function that prints the words of its argument, and fails where that is not known."""
    yield f'_agentrl_{name}() {{ case "$1" in'
    for path, words in table.items():
        yield f"  {shlex.quote(path)}) echo {shlex.join(words)} ;;"
    yield "  *) return 1 ;; esac; }"


def _fish(name: str, table: Mapping[str, list[str]]) -> Iterator[str]:
    yield f'function __agentrl_{name}; switch "$argv[1]"'
    for path, words in table.items():
        yield f"  case {shlex.quote(path)}; printf '%s\\n' {shlex.join(words)}"
    yield "  case '*'; return 1; end; end"


# Of keys a section is offered first, then what is in it: there are two hundred.
_BASH = r"""
_agentrl() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path="" word kind dot values
  [[ $cur == = || $prev == = ]] && return
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word != -* && " $(_agentrl_words "$path") " == *" $word "* ]] && path="${path:+$path }$word"
  done
  if values=$(_agentrl_values "${path:+$path }$prev"); then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
    return
  fi
  COMPREPLY=($(compgen -W "$(_agentrl_words "$path")" -- "$cur"))
  [[ $cur == -* || -n ${COMPREPLY[*]} ]] && return
  if kind=$(_agentrl_keys "$path"); then
    [[ $cur == *.* ]] && dot="*" || dot="*.?*"
    for word in $(compgen -W "$(_agentrl_keys_of "$kind")" -- "$cur"); do
      [[ $dot == "*" || $word != $dot ]] && COMPREPLY+=("$word")
    done
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[.=] ]] && compopt -o nospace 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$cur"))
  fi
}
complete -o default -o filenames -F _agentrl agentrl
"""
_ZSH = r"""
_agentrl() {
  local cur=${words[CURRENT]} cmd="" word kind values
  local -a found
  for word in ${words[2,CURRENT-1]}; do
    found=($(_agentrl_words "$cmd"))
    [[ $word != -* ]] && (( ${found[(Ie)$word]} )) && cmd="${cmd:+$cmd }$word"
  done
  if values=$(_agentrl_values "${cmd:+$cmd }${words[CURRENT-1]}"); then
    [[ -n $values ]] && compadd -- ${=values} || _files
    return
  fi
  found=($(_agentrl_words "$cmd"))
  [[ $cur == -* ]] || found=(${found:#-*})
  compadd -a -- found && return
  kind=$(_agentrl_keys "$cmd") && found=($(_agentrl_keys_of "$kind"))
  [[ $cur == *.* ]] || found=(${found:#*.?*})
  compadd -S '' -a -- found
  _files
}
if [[ $funcstack[1] == _agentrl ]]; then _agentrl "$@"; else compdef _agentrl agentrl; fi
"""
_FISH = r"""
function __agentrl_complete
  set -l before (commandline -opc)
  set -l cur (commandline -ct)
  set -l path ''
  for word in $before[2..]
    if not string match -q -- '-*' $word; and contains -- $word (__agentrl_words $path)
      set path (string trim -- "$path $word")
    end
  end
  if set -l values (__agentrl_values (string trim -- "$path $before[-1]"))
    string match -q -- '?*' $values; and printf '%s\n' $values; or __fish_complete_path $cur
    return
  end
  set -l words (__agentrl_words $path)
  string match -q -- '-*' $cur; or set words (string match -v -- '-*' $words)
  string match -- '?*' $words
  if set -l kind (__agentrl_keys $path)
    if string match -q -- '*.*' $cur
      __agentrl_keys_of $kind
    else
      __agentrl_keys_of $kind | string match -v -r -- '\..'
    end
  end
  __fish_complete_path $cur
end
complete -c agentrl -f -a '(__agentrl_complete)'
"""
