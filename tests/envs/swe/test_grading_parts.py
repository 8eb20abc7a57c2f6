"""The parts of grading alone: what of a tree counts, tests that cannot pass, what a report says."""

from __future__ import annotations

import json

import pytest
from agentrl_envs.swe.changes import MAX_BYTES, Changes, patched_files, source_changes
from agentrl_envs.swe.final_diff import diff_for_readers
from agentrl_envs.swe.judge import LogReports, Reports
from agentrl_envs.swe.locate import TestIndex
from agentrl_envs.swe.proof.sabotage import sabotage, twin_name
from agentrl_envs.swe.record import SweTask


def record(**more) -> SweTask:
    return SweTask(
        instance_id="a",
        repo="a",
        base_commit="b",
        patch="--- a/lib/core.py\t2020\n+++ b/lib/core.py\n",
        problem_statement="p",
        FAIL_TO_PASS=("t::x",),
        **more,
    )


def taken(path: str, data: bytes = b"x", **more) -> bool:
    """Whether a new file at `path` is taken over."""
    return path in source_changes(record(**more), {}, {path: data}).written


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "lib/conftest.py",
        "lib/tests/test_a.py",
        "lib/test_new.py",
        "lib/new_test.py",
        "tests.py",
        "setup.py",
        "lib/setup.cfg",
        "pytest.ini",
        "lib/pytest.toml",
        "tox.ini",
        "notes.txt",
        "sitecustomize.py",
        "src/usercustomize.py",
        "lib/a.pth",
        "lib/a.pyc",
        "lib/__pycache__/core.cpython-311.pyc",
        "lib/core.cpython-311-x86_64-linux-gnu.so",
        "lib.egg-info/entry_points.txt",
        "pytest.py",
        "_pytest/__init__.py",
        "src/json.py",
        "re/__init__.py",
        "agentrl_report.py",
        ".git/hooks/x.py",
        "../out.py",
        "/etc/out.py",
        "lib/new\nline.py",
    ],
)
def test_what_steers_the_tests_is_never_taken_over(path):
    assert not taken(path)
    # Nor where the data set says that all of the tree is source.
    assert not taken(path, source_paths=(".",)) or path == "notes.txt"


@pytest.mark.parametrize("path", ["lib/core.py", "lib/deep/new.py", "lib/data.json", "top.py"])
def test_source_is_taken_over(path):
    assert taken(path)


def test_the_paths_of_a_record_and_the_gold_patch_decide():
    assert not taken("other/x.py", source_paths=("lib",))
    assert not taken("library/x.py", source_paths=("lib",))
    assert taken("lib/x.py", source_paths=("lib/",))
    assert not taken("lib/checks/x.py", source_paths=("lib",), test_paths=("lib/checks",))
    # django/test/client.py: source in a folder that looks like tests, as the fix itself says.
    assert not taken("lib/test/client.py")
    patch = "--- a/lib/test/client.py\n+++ b/lib/test/client.py\n"
    gold = SweTask(**{**{name: getattr(record(), name) for name in _REQUIRED}, "patch": patch})
    assert source_changes(gold, {}, {"lib/test/client.py": b"x"}).written
    assert patched_files("--- /dev/null\n+++ b/x y.py\n") == ["x y.py"]


_REQUIRED = ("instance_id", "repo", "base_commit", "problem_statement", "FAIL_TO_PASS")


def test_only_text_of_a_bounded_size_is_taken_over():
    assert not taken("lib/core.py", b"\xff\xfe")
    assert not taken("lib/core.py", b"a\0b")
    big = source_changes(record(), {}, {"lib/a.py": b"x" * (MAX_BYTES + 1)})
    assert (big.too_large, dict(big.written)) == (True, {})
    before = {"lib/a.py": b"1", "lib/b.py": b"2", "tests/t.py": b"3"}
    changes = source_changes(record(), before, {"lib/a.py": b"1"})
    assert (changes.deleted, changes.ignored) == (("lib/b.py",), ("tests/t.py",))
    assert not source_changes(record(), before, before)


TESTS = '''
import unittest
\x0c
def right(x):
    return x

def test_number():
    """Say so."""
    a = right(2)
    assert a == 2
    assert right("é") == "é"

def test_words(): assert right(1) < 2

async def test_awaited():
    if right(1):
        assert right(1) == 1

class TestMore(unittest.TestCase):
    def test_method(self):
        self.assertEqual(right([1]), [1])
        self.assertEqual({"a": 1}, right({"a": 1}))

    @unittest.skip("x")
    def test_early(self):
        """Doc."""
        with self.subTest():
            return

def test_both(): assert 1 == 1
def test_flag():
    assert right(True) == True
'''
NAMES = ("test_number", "test_words", "test_method", "test_early", "test_both", "test_flag")


def test_right_code_fails_every_changed_test_and_no_other():
    """Also that the changed file is still Python, whatever stands first in a body."""
    made = sabotage(TESTS, [*NAMES, "test_awaited", "test_not_here"])
    assert made is not None
    assert made.functions == {*NAMES, "test_awaited"}
    space: dict = {}
    exec(compile(made.source, "t", "exec"), space)
    for name in NAMES:
        if name in space:
            with pytest.raises(AssertionError):
                space[name]()
    for name in ("test_method", "test_early"):
        case = space["TestMore"](name)
        with pytest.raises(AssertionError):
            getattr(type(case), name).__wrapped__(case) if name == "test_early" else getattr(
                case, name
            )()
    some = sabotage(TESTS, ["test_words"])
    assert some is not None
    exec(compile(some.source, "t", "exec"), space)
    space["test_number"]()


def test_a_twin_is_the_test_as_it_was():
    source = TESTS.replace("def test_both", "@decorated\ndef test_both")
    made = sabotage(source, NAMES, "7f")
    assert made is not None
    assert made.twins == made.functions == set(NAMES)
    space: dict = {"decorated": lambda function: function}
    exec(compile(made.source, "t", "exec"), space)
    for name in ("test_number", "test_words", "test_both", "test_flag"):
        space[f"{name}_7f"]()
    space["TestMore"]("test_method_7f").test_method_7f()
    assert space["TestMore"].test_early_7f.__unittest_skip__
    names = {"a.py::TestTop::test_x[a::b c]": "a.py::TestTop::test_x_7f[a::b c]",
             "test_x": "test_x_7f"}  # fmt: skip
    assert {name: twin_name(name, "7f") for name in names} == names


def test_literals_differ_from_one_grading_to_the_next():
    one, other = sabotage(TESTS, ["test_number"]), sabotage(TESTS, ["test_number"])
    assert one is not None
    assert other is not None
    # Else code could learn which literals mean a sabotaged test.
    assert one.source != other.source
    assert "raise AssertionError" not in one.source


@pytest.mark.parametrize("source", ["def test_x(:", "x = 1", "\0"])
def test_a_file_without_the_test_is_left_alone(source):
    assert sabotage(source, ["test_x"]) is None


def test_a_test_is_found_where_it_is_defined():
    """Caught: changing a function of the right name that another test has, or none at all."""
    files = {
        "tests/__init__.py": "class Mixin:\n    def test_shared(self): pass\n",
        "tests/test_a.py": """
from tests import Mixin
from elsewhere import test_imported, Unknown
class Near:
    def test_near(self): pass
class TestA(unittest.TestCase, tests.Mixin, Near):
    def test_own(self): pass
class TestB(Unknown): pass
class Twin: pass
class Twin: pass
class TestC(Twin): pass
def test_plain(): pass
if new:
    def test_here(): pass
def test_imported(): pass
""",
        "tests/test_b.py": "class Near:\n    def test_near(self): pass\ndef test_own(): pass\n",
        "tests/test_old.py": "print 'no Python 3'",
        "lib/test_plain.py": "def test_plain(): pass",
    }
    index = TestIndex({path: text.encode() for path, text in files.items()}, ["tests/test_a.py::x"])

    def path_of(name: str) -> str | None:
        place = index.find(name)
        return place and place.path

    assert "lib/test_plain.py" not in index.sources
    assert path_of("tests/test_a.py::test_plain[1-a b]") == "tests/test_a.py"
    assert path_of("tests/test_a.py::test_plain[a::b c]") == "tests/test_a.py"
    assert path_of("tests/test_a.py::test_here") == "tests/test_a.py"
    assert path_of("tests/test_a.py::TestA::test_own") == "tests/test_a.py"
    assert path_of("tests/test_a.py::TestA::test_shared") == "tests/__init__.py"
    assert path_of("tests/test_a.py::TestA::test_near") == "tests/test_a.py"
    for name in (
        "tests/test_a.py::test_own",
        "tests/test_a.py::test_imported",
        "tests/test_a.py::TestB::test_own",
        "tests/test_a.py::TestC::test_own",
        "tests/test_old.py::test_x",
        "test_plain",
    ):
        assert path_of(name) is None


def states(lines, names) -> str:
    reports = Reports()
    data = "".join(
        line if isinstance(line, str) else json.dumps(["test", *line]) + "\n" for line in lines
    ).encode()
    for start in range(0, len(data), 7):  # in pieces, as pipes give them
        reports.feed(data[start : start + 7])
    return reports.states(names)


@pytest.mark.parametrize(
    ("phases", "state"),
    [
        ([("setup", "passed"), ("call", "passed"), ("teardown", "passed")], "p"),
        ([("setup", "passed")], "m"),
        ([("setup", "failed")], "f"),
        ([("setup", "passed"), ("call", "passed"), ("teardown", "failed")], "f"),
        ([("call", "failed"), ("call", "passed")], "f"),
        ([("call", "passed"), ("call", "failed")], "f"),
        ([("setup", "skipped")], "s"),
        ([("setup", "passed"), ("call", "xfail"), ("teardown", "passed")], "s"),
        ([], "m"),
    ],
)
def test_a_test_passes_only_if_all_of_it_does(phases, state):
    assert states([("t.py::x", *phase) for phase in phases], ["t.py::x"]) == state


def test_names_of_other_data_sets_stand_for_all_tests_they_begin():
    ran = [
        ("a/t.py::test_x[a b]", "call", "passed"),
        ("a/t.py::test_x[a c]", "call", "failed"),
        ("a/t.py::TestA::test_y", "call", "passed"),
        "no report\n",
        '["test", "short"]\n',
        "[]\n",
    ]
    assert states(ran, ["a/t.py::test_x[a b]", "a/t.py::test_x[a", "test_x"]) == "pff"
    assert states(ran, ["TestA.test_y", "test_y", "a/t.py::test_y"]) == "ppm"


def test_the_diff_for_readers_is_whole_for_an_edit_and_bounded_for_the_rest():
    long = b"x = 1\n" * 50_000
    before = {"a.py": b"1\n2\n3\n", "long.py": long, "gone.bin": b"\xff", "all.py": long}
    written = {
        "a.py": b"1\n2\n4\n",
        "long.py": long + b"y = 2\n",
        "all.py": b"x = 1\ny = 1\n" * 50_000,
        "new.py": b"z = 3\n" * 50_000,
    }
    text = diff_for_readers(Changes(written=written, deleted=("gone.bin",)), before)
    assert "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n 1\n 2\n-3\n+4\n" in text
    assert "+y = 2\n" in text
    assert "# all.py: 300000 bytes before, 600000 after, not compared\n" in text
    assert "# gone.bin: 1 bytes before, 0 after, not compared\n" in text
    assert text.endswith(" characters\n")
    assert len(text) < 201_000


DJANGO_LOG = """Testing against Django installed in '/testbed/django'
Creating test database for alias 'default'...
test_ok (app.tests.Case) ... ok
test_bad (app.tests.Case) ... FAIL
test_off (app.tests.Case) ... skipped 'no'
test_known (app.tests.Case) ... expected failure
test_doc (app.tests.Case)
The first line of a docstring. ... ok
test_loud (app.tests.Case) ... printed
ok
test_late (app.tests.Case) ... ok
ERROR: test_late (app.tests.Case)
Ran 7 tests in 0.01s
"""
SYMPY_LOG = """===== test process starts =====
sympy/core/tests/test_basic.py[3]
test_ok ok
test_bad F
test_raises E
test_known f
test_slow s
===== tests finished: 1 passed =====
"""


@pytest.mark.parametrize(
    ("kind", "log", "names", "states"),
    [
        (
            "django",
            DJANGO_LOG,
            [*(f"test_{n} (app.tests.Case)" for n in ("ok", "bad", "off", "known", "loud", "late")),
             "The first line of a docstring.", "test_no (app.tests.Case)"],
            "pfsxpfpm",
        ),
        ("sympy", SYMPY_LOG, [f"test_{n}" for n in ("ok", "bad", "raises", "known", "slow", "no")],
         "pffxsm"),
    ],
)  # fmt: skip
def test_the_output_of_other_runners_says_how_tests_ended(kind, log, names, states):
    reports = LogReports(kind)
    data = log.encode()
    for start in range(0, len(data), 7):
        reports.read(data[start : start + 7])
    assert (reports.hello, reports.states(names)) == (True, states)


def test_a_new_file_of_a_package_that_is_there_shadows_nothing():
    """Caught: a repair of pytest itself, or of a library called as one of its, that adds a file."""
    task = record(python_path=(".", "src"))
    before = {"src/_pytest/main.py": b"", "lib.py": b""}
    after = {**before, "src/_pytest/new.py": b"x = 1\n", "src/json.py": b"", "pluggy/a.py": b""}
    changes = source_changes(task, before, after)
    assert set(changes.written) == {"src/_pytest/new.py"}
    assert set(changes.ignored) == {"src/json.py", "pluggy/a.py"}
