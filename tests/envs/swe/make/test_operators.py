from __future__ import annotations

import difflib

import pytest
from agentrl_envs.swe.make.mutation.operators import OPERATORS
from agentrl_envs.swe.make.mutation.sites import SourceFile

SOURCE = '''\
class Box:
    def __init__(self, a, b):
        self.a = a
        self.b = b

    def work(self, items, limit, *, deep=True):
        """Not a constant: 1 + 1."""
        total = self.a+1  # keep this comment
        if items and limit:
            total += len(items)
        if not items:
            return min(items, limit)
        for item in items[1:limit]:
            if item == limit:
                continue
            self.add(item, key=deep)
        else:
            total = 2
        if total > limit:
            total = 3
        else:
            total = 4
        try:
            raise KeyError("x")
        except ValueError:
            pass
        if limit is None:
            self.b = total
        return sorted(items)

    def __repr__(self):
        return "Box" + str(1 + 2)
'''

EXAMPLES = {
    "compare": ("if item == limit:", "if item != limit:"),
    "arithmetic": ("self.a+1  # keep this comment", "self.a-1  # keep this comment"),
    "boolean": ("if items and limit:", "if items or limit:"),
    "drop_operand": ("if items and limit:", "if limit:"),
    "negate": ("if not items:", "if items:"),
    "off_by_one": ("total = 3", "total = 4"),
    "flip_constant": ("*, deep=True):", "*, deep=False):"),
    "swap_arguments": ("return min(items, limit)", "return min(limit, items)"),
    "drop_argument": ("self.add(item, key=deep)", "self.add(item)"),
    "sibling_call": ("return min(items, limit)", "return max(items, limit)"),
    "wrong_name": ("return min(items, limit)", "return min(limit, limit)"),
    "wrong_attribute": ("total = self.a+1", "total = self.b+1"),
    "slice_bound": ("items[1:limit]", "items[:limit]"),
    "loop_exit": ("continue", "break"),
    "drop_statement": ("            self.add(item, key=deep)\n", ""),
    "drop_else": ("        else:\n            total = 4\n", ""),
    "swap_branches": ("total = 3\n        else:\n            total = 4",
                      "total = 4\n        else:\n            total = 3"),
    "other_exception": ("except ValueError:", "except KeyError:"),
    "return_early": ("return sorted(items)", "return items"),
}  # fmt: skip


@pytest.fixture(scope="module")
def source():
    return SourceFile(SOURCE)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_changes_what_it_says_and_nothing_else(source, name):
    """Also that spaces and comments stay: `self.a+1` once became `self.a - 1`, which tells."""
    old, new = EXAMPLES[name]
    expected = SOURCE.replace(old, new, 1)
    assert expected != SOURCE
    made = [source.changed(site) for site in source.sites if site.operator == name]
    assert expected in made


def test_changes_are_small_and_leave_what_only_tells_alone(source):
    for site in source.sites:
        text = source.changed(site)
        if text is None:
            continue
        assert '"""Not a constant: 1 + 1."""' in text
        assert 'return "Box" + str(1 + 2)' in text
        compare = difflib.unified_diff(SOURCE.splitlines(), text.splitlines(), n=0, lineterm="")
        lines = [line for line in compare if line[0] in "+-" and line[:3] not in ("+++", "---")]
        assert 1 <= len(lines) <= 4, (site.operator, lines)


def test_text_put_in_is_what_libcst_would_write(source):
    """The quick way takes spans of the text; a span off by one writes another program."""
    quick = {site: source._spliced(site) for site in source.sites}
    assert sum(text is not None for text in quick.values()) > len(quick) // 2
    for site, text in quick.items():
        assert text in (None, source._rebuilt(site)), site.operator


def test_functions_that_no_test_runs_are_left_alone():
    line = 1 + SOURCE[: SOURCE.index("    def work")].count("\n")
    assert {site.function for site in SourceFile(SOURCE, covered=[line]).sites} == {"Box.work"}
    assert SourceFile(SOURCE, covered=[]).sites == []


def test_a_file_that_is_not_python_is_a_value_error():
    with pytest.raises(ValueError, match="libcst"):
        SourceFile("def f(:\n")
