"""Finds text and files in the sandbox of the rollout.

It needs only `find`, `grep`, `sort` and `head`, which every image has; results are sorted, because
the order of a directory differs from machine to machine and a model's prompt must not.
"""

from __future__ import annotations

from itertools import pairwise

from agentrl.errors import ToolError
from agentrl.sandbox import ExecResult, Outcome, Sandbox
from agentrl.types import ToolResult, ToolStatus
from agentrl_tools.output import checked_path, clean, describe

MAX_RESULTS = 100
"""Matches or files one call gives."""
MAX_LINE = 300
"""Bytes shown of a matching line with its place."""
MAX_PATTERN = 4096
"""Characters of a pattern."""
MAX_GLOBS = 64
"""Names that the braces of one glob may stand for."""

_NO_PATH, _NO_REGEX = 71, 72

# $1 where, $2 regular expression, $3 bytes of a line, $4 results, $5 and on globs.
_FIND = r"""
[ -e "$1" ] || exit 71
list() {
  find "$1" \( -name .git -o -name .hg -o -name .svn -o -name __pycache__ -o -name node_modules \
    -o -name .venv -o -name '.*_cache' \) -prune -o -type f \( {names} \) -print0 | LC_ALL=C sort -z
}
"""
_FILES = _FIND + 'list "$@" | tr "\\0" "\\n" | head -n "$4"'
# GNU grep knows what \d and \b are and passes over binary files; others know neither option.
_TEXT = (
    _FIND
    + r"""
flags=-nHE
echo a | grep -qIP '\w' 2>/dev/null && flags=-nHIP
wrong=$(echo a | grep "$flags" -e "$2" 2>&1 >/dev/null)
[ -z "$wrong" ] || { echo "$wrong" >&2; exit 72; }
list "$@" | xargs -0 -r grep "$flags" -e "$2" | cut -b "1-$3" | head -n "$4"
"""
)


async def search(
    sandbox: Sandbox, pattern: str = "", glob: str = "*", path: str = "."
) -> ToolResult:
    """Search the text of files, or find files by name.

    With a pattern it gives matching lines as file:line number:text; without one, the files
    themselves. Folders such as .git and __pycache__ are left out.

    Args:
        pattern: regular expression, matched against single lines
        glob: only files with such a name, as in *.py, src/*.py or *.{c,h}
        path: directory or file to search in, relative to the work directory
    """
    if "\0" in pattern + glob or len(pattern) > MAX_PATTERN or len(glob) > MAX_PATTERN:
        raise ToolError(
            f"Error: pattern and glob may have {MAX_PATTERN} characters each, and no NUL"
        )
    path = checked_path(path)
    where = path if path.startswith(("/", "./")) or path == "." else f"./{path}"
    globs = _without_braces(glob)
    # `find -path` lets a star run over slashes, so that two stars are no different.
    wanted = [f"*/{g.removeprefix('./')}" if "/" in g else g for g in globs]
    tests = ["-path" if "/" in g else "-name" for g in globs]
    names = " -o ".join(f'{test} "${{{at}}}"' for at, test in enumerate(tests, start=5))
    script = (_TEXT if pattern else _FILES).replace("{names}", names)
    numbers = (str(MAX_LINE), str(MAX_RESULTS + 1))
    found = [clean(name.replace("**/", "*")) for name in wanted]
    result = await sandbox.exec(("sh", "-c", script, "sh", where, clean(pattern), *numbers, *found))
    what = f"{'text' if pattern else 'file'} like {clean(pattern or glob)!r} in {path!r}"
    return _shown(result, path, what)


def _without_braces(glob: str) -> list[str]:
    """`*.{c,h}` as `*.c` and `*.h`, as a shell would; `find` knows no braces."""
    done: list[str] = []
    left = [glob]
    while left:
        text = left.pop(0)
        marks = _braces(text)
        if marks:
            head, tail = text[: marks[0]], text[marks[-1] + 1 :]
            left[:0] = [head + text[a + 1 : b] + tail for a, b in pairwise(marks)]
        else:
            done.append(text)
        if len(done) + len(left) > MAX_GLOBS:
            raise ToolError(f"Error: the braces of glob stand for more than {MAX_GLOBS} names")
    return list(dict.fromkeys(done))


def _braces(glob: str) -> list[int]:
    """Offsets at which the first braces with commas in them open, are parted and close; or none."""
    open_marks: list[list[int]] = []
    found: list[list[int]] = []
    for at, letter in enumerate(glob):
        if letter == "{":
            open_marks.append([at])
        elif letter == "," and open_marks:
            open_marks[-1].append(at)
        elif letter == "}" and open_marks:
            marks = [*open_marks.pop(), at]
            found += [marks] if len(marks) > 2 else []
    return min(found, default=[])


def _shown(result: ExecResult, path: str, what: str) -> ToolResult:
    if result.outcome is Outcome.NONZERO and result.exit_code == _NO_PATH:
        raise ToolError(f"Error: {path}: there is no such file or directory")
    if result.outcome is Outcome.NONZERO and result.exit_code == _NO_REGEX:
        reason = result.stderr.strip().removeprefix("grep: ")[:300]
        raise ToolError(f"Error: the pattern is not a regular expression: {reason}")
    if result.outcome is not Outcome.OK:
        late = result.outcome is Outcome.TIMEOUT
        return ToolResult(
            text=describe(result), status=ToolStatus.TIMEOUT if late else ToolStatus.ERROR
        )
    found = [line.removeprefix("./") for line in result.stdout.splitlines()]
    if not found:
        note = result.stderr.strip()[:300]
        return ToolResult(text=f"No {what}." + (f"\n{note}" if note else ""))
    text = "\n".join(found[:MAX_RESULTS])
    more = len(found) > MAX_RESULTS
    if more:
        text += f"\n[there is more; these are the first {MAX_RESULTS}, so search for less]"
    return ToolResult(text=text, truncated=more)
