"""Wrong functions near a right one: one thing changed in its source, and typical mistakes."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_LINES = 3000
"""Lines after which a mutant is taken to run without end."""
_COMPARED = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_COMPUTED = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mod), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,),
}  # fmt: skip
_CALLED = {"max": "min", "min": "max", "upper": "lower", "lower": "upper", "all": "any",
           "any": "all", "startswith": "endswith", "endswith": "startswith", "lstrip": "rstrip",
           "rstrip": "lstrip", "sum": "len", "len": "sum"}  # fmt: skip
TYPICAL = {
    "prime": (
        "n > 1 and (n == 2 or n % 2 == 1)", "n > 1 and (n < 4 or n % 2 and n % 3)", "n % 2 == 1",
        "n in (2, 3, 5, 7) or all(n % i for i in (2, 3, 5))", "all(n % i for i in range(2, n))",
        "n > 1 and all(n % i for i in range(2, int(n ** 0.5)))", "n > 1 and n % 2 != 0",
    ),
    "palindrome": ("s[:1] == s[-1:]", "len(s) < 2 or s[0] == s[-1]", "s[:2] == s[::-1][:2]"),
    "anagram": ("len(a) == len(b)", "set(a) == set(b)", "a == b[::-1]",
                "len(a) == len(b) and set(a) == set(b)"),
    "digit_sum": ("n % 10", "n % 9", "n // 10 + n % 10"),
    "digit_count": ("n // 10 + 1", "2 if n > 9 else 1"),
    "gcd": ("min(a, b)", "abs(a - b)", "1"),
    "fibonacci": ("n * (n - 1) // 2", "n + 1", "2 ** n"),
    "factorial": ("n * (n - 1)", "sum(range(1, n + 1))"),
    "word_count": ("len(s)", "s.count(' ') + 1", "len(s.split(' '))"),
    "longest_word": ("max(s.split())", "s.split()[0]", "s.split()[-1]", "max(s, key=len)"),
    "title_words": ("s.capitalize()", "s.upper()"),
    "sort_list": ("sorted(n, key=str)", "n[::-1]", "sorted(set(n))"),
    "extreme_of_list": ("n[0]", "n[-1]", "sorted(n, key=abs)[-1]", "sorted(n, key=str)[-1]"),
    "second_extreme": ("sorted(n)[0]", "n[1]", "sorted(n)[-1]"),
    "average": ("(a + b) // 2", "a + b / 2"),
    "average_list": ("sum(n)", "sum(n) // len(n)"),
    "remove_duplicates": ("list(set(n))", "sorted(set(n))"),
    "range_of_list": ("n[-1] - n[0]", "max(n)", "abs(n[0] - n[-1])"),
    "contains": ("x in items[:1]", "len(items) > 1"),
    "concat": ("sorted(a + b)", "list(set(a + b))", "b + a"),
    "common_items": ("list(set(a) & set(b))", "[x for x in b if x in a]"),
    "count_item": ("len(items)", "int(x in items)", "len(set(items))"),
    "reverse_words": ("s[::-1]", "' '.join(w[::-1] for w in s.split())"),
    "count_vowels": ("len(s)", "s.count('a')", "len(set(s) & set('aeiou'))"),
    "collatz": ("n // 2", "3 * n + 1"),
    "greet": ("'Hello, ' + name.title() + '!'", "'Hi, ' + name.title() + '!'"),
}  # fmt: skip
"""Bodies that are often written for a family; names of other parameters are replaced."""


_BEFORE = {
    "no sign": "abs(x) if kind is int else [abs(y) for y in x] if numbers else x",
    "none below 0": "max(x, 0) if kind is int else [y for y in x if y >= 0] if numbers else x",
    "no 0 in lists": "[y for y in x if y] if kind is list else x",
    "a table up to 100": "min(x, 100) if kind is int else x",
    "a table up to 9": "min(x, 9) if kind is int else x",
    "the last two digits": "x % 100 if kind is int else x",
    "each item once": "list(dict.fromkeys(x)) if kind is list else x",
    "sorted lists": "sorted(x) if kind is list else x",
    "lists from behind": "x[::-1] if kind is list else x",
    **{f"{n} items": f"x[:{n}] if kind is list else x" for n in range(1, 7)},
    **{f"{n} characters": f"x[:{n}] if kind is str else x" for n in range(1, 9)},
    "the last three": "x[-3:] if kind in (list, str) else x",
    "small letters": "x.lower() if kind is str else x",
    "capital letters": "x.upper() if kind is str else x",
    "no space around": "x.strip() if kind is str else x",
    "single spaces": "' '.join(x.split()) if kind is str else x",
    "no spaces": "x.replace(' ', '') if kind is str else x",
    "the first word": "(x.split() or [''])[0] if kind is str else x",
    "letters alone": "''.join(c for c in x if c.isalnum() or c == ' ') if kind is str else x",
}
"""Habits of small models: what they do to each argument before they compute the right thing."""
_AFTER = {
    "1 for True": "int(r) if r is True or r is False else r",
    "True for 1": "bool(r) if type(r) is int and r in (0, 1) else r",
    "text": "str(r)", "a tuple": "tuple(r) if type(r) is list else r",
    "whole numbers": "int(r) if type(r) is float else r",
    "one decimal": "round(r, 1) if type(r) is float else r",
    "two decimals": "round(r, 2) if type(r) is float else r",
    "no sign": "abs(r) if type(r) in (int, float) else r",
    "none below 0": "max(r, 0) if type(r) is int else r",
    "None for nothing": "r or None",
    "no space around": "r.strip() if type(r) is str else r",
    "small letters": "r.lower() if type(r) is str else r",
    "sorted": "sorted(r) if type(r) is list else r",
    "each item once": "list(dict.fromkeys(r)) if type(r) is list else r",
}  # fmt: skip
"""The same for what comes out."""
_OTHERWISE = ("None", "0", "1", "True", "False", "''", "[]", "a[0]", "a[-1]")


def habits(source: str, public: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Habit to the source of a function that has it, and those that know the public cases alone."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    name = function.name
    right = f"{source}\nright = {name}\ndef {name}(*a):\n"
    told = (
        "    def seen(x):\n"
        "        kind = type(x)\n"
        "        numbers = kind is list and all(type(y) is int for y in x)\n"
        "        return {}\n"
        "    return right(*map(seen, a))\n"
    )
    found = {f"before: {habit}": right + told.format(how) for habit, how in _BEFORE.items()}
    found |= {
        f"after: {habit}": f"{right}    r = right(*a)\n    return {how}\n"
        for habit, how in _AFTER.items()
    }
    cases = [(case["args"], case["expected"]) for case in public]
    known = f"def {name}(*a):\n    for x, y in {cases!r}:\n        if list(a) == x: return y\n"
    return found | {
        f"the examples, else {other}": f"{known}    return {other}\n"
        for other in (*_OTHERWISE, *{repr(case["expected"]) for case in public})
    }


def mutants(source: str) -> list[str]:
    """Sources of functions of the same name that are not the same function, each once."""
    tree = ast.parse(source)
    found = {ast.unparse(tree)}
    sources: list[str] = []
    for place, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            other = copy.deepcopy(tree)
            change(next(n for at, n in enumerate(ast.walk(other)) if at == place))
            text = ast.unparse(ast.fix_missing_locations(other))
            if text not in found:
                found.add(text)
                sources.append(text)
    return sources


def typical(family: str, source: str) -> list[str]:
    """The typical wrong functions of a family, under the name and parameters of a right one."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    names = [arg.arg for arg in function.args.args]
    head = f"def {function.name}({', '.join(names)}):\n"
    guesses = [
        "None",
        "0",
        "True",
        "False",
        "''",
        "[]",
        names[0],
        names[-1],
        *TYPICAL.get(family, ()),
    ]
    own = dict(zip(("n", "s"), (names[0], names[0]), strict=True)) | dict(
        zip("ab", names, strict=False)
    )
    if family == "add_affix":
        affix = repr(source.rpartition("+ ")[2].strip().strip("'\""))
        guesses += [f"s if s.endswith({affix}) else s + {affix}", f"s.strip() + {affix}",
                    f"s + {affix} if s else s", f"s.rstrip('a') + {affix}"]  # fmt: skip
    bodies = [ast.unparse(_Renamed(own).visit(ast.parse(guess, mode="eval"))) for guess in guesses]
    return [f"{head}    return {body}\n" for body in dict.fromkeys(bodies)]


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(id=self._names.get(node.id, node.id), ctx=node.ctx)


def _changes(node: ast.AST) -> Iterator[Any]:
    if isinstance(node, ast.Compare):
        for other in _COMPARED.get(type(node.ops[0]), ()):
            yield lambda n, o=other: n.ops.__setitem__(0, o())
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for other in _COMPUTED.get(type(node.op), ()):
            yield lambda n, o=other: setattr(n, "op", o())
    if isinstance(node, ast.BoolOp):
        yield lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
        for index in range(len(node.values)):
            yield lambda n, i=index: setattr(n, "values", [n.values[i]] * 2)
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield lambda n: setattr(n, "value", not n.value)
        elif isinstance(node.value, int | float):
            for more in (1, -1):
                yield lambda n, m=more: setattr(n, "value", n.value + m)
        elif isinstance(node.value, str):
            for new in (node.value + "x", node.value[1:], ""):
                yield lambda n, v=new: setattr(n, "value", v)
    if isinstance(node, ast.Name) and node.id in _CALLED and isinstance(node.ctx, ast.Load):
        yield lambda n: setattr(n, "id", _CALLED[n.id])
    if isinstance(node, ast.Attribute) and node.attr in _CALLED:
        yield lambda n: setattr(n, "attr", _CALLED[n.attr])
    if isinstance(node, ast.Slice):
        for end in ("lower", "upper", "step"):
            if getattr(node, end) is not None:
                yield lambda n, e=end: setattr(n, e, None)
    if isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp):
        yield lambda n: setattr(n, "value", n.value.body)
        yield lambda n: setattr(n, "value", n.value.orelse)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda n: setattr(n, "operand", ast.UnaryOp(op=ast.Not(), operand=n.operand))


class _Endless(Exception):
    """More lines than any right function runs."""


def answers(source: str, name: str, inputs: Sequence[Sequence[Any]]) -> list[Any]:
    """What a function gives for each input; an exception is its type."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    found: list[Any] = []
    for arguments in inputs:
        lines = 0

        def count(frame: Any, event: str, arg: Any) -> Any:
            nonlocal lines
            lines += 1
            if lines > _LINES:
                raise _Endless
            return count

        sys.settrace(count)
        try:
            found.append(namespace[name](*copy.deepcopy(list(arguments))))
        except Exception as error:
            found.append(type(error))
        finally:
            sys.settrace(None)
    return found
