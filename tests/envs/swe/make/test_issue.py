"""Problem texts in a user's words, bugs of several sites, removed features, and figures."""

from __future__ import annotations

import ast
import json

import pytest
from agentrl_envs.swe import TreeStore, read_tasks, swe_tasks
from agentrl_envs.swe.make.difficulty import figures, level, record_rates, summary
from agentrl_envs.swe.make.issue import Secrets, ServedWriter, Story, hide_tests, write_issue
from agentrl_envs.swe.make.issue.definitions import NoScriptError, definitions_of
from agentrl_envs.swe.make.issue.differences import difference
from agentrl_envs.swe.make.issue.leaks import leaks
from agentrl_envs.swe.make.issue.observe import Effect
from agentrl_envs.swe.make.issue.scripts import script_of
from agentrl_envs.swe.make.issue.snippet import Moment, Snippet, snippets
from agentrl_envs.swe.make.issue.words import Reported, subject_of, written
from agentrl_envs.swe.make.mutation.removal import merged, removals
from agentrl_envs.swe.make.validate import validate_tasks
from agentrl_envs.swe.patches import apply_patch
from agentrl_envs.swe.trees import TreeFile

from agentrl.cli import main
from agentrl.data.tasks.pass_rates import Measured, append_measured
from agentrl.errors import ConfigError, DataError
from agentrl.served import ServedModel, ServedSettings
from tests.envs.swe.make.swe_making import request_for
from tests.envs.swe.make.swe_sdists import SHAPES
from tests.served.scripted_server import scripted_server

CLAMP = Reported(
    snippet=Snippet(imports=("from shapes import clamp",), setup=(), call="clamp(9, 1, 3)",
                    is_value=True),
    actual=Effect(value="9", type="int"),
    expected=Effect(value="3", type="int"),
    depth=1,
)  # fmt: skip
STORY = Story(library="shapes", version="1.0", python="3.12", symptoms=(CLAMP,))
SECRETS = Secrets(
    paths=("pkg/inner.py",),
    patch="--- a/pkg/inner.py\n+++ b/pkg/inner.py\n-    return value\n"
    "+    return min(value, high)\n",
    tests=("tests/test_x.py::test_upper_end",),
    functions=("_bounded",),
)


def script(source, name="test_it", owner=""):
    tree = ast.parse(source)
    around = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
    body = around[0].body if around else tree.body
    (function,) = (n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    return script_of(name, function, around, definitions_of(source))


UNITTEST = """
import unittest
from shapes import Box, pick

class BoxTest(unittest.TestCase):
    Kind = Box

    def setUp(self):
        self.box = self.Kind(3)

    def test_it(self):
        "What it does."
        self.box.put(1)
        self.assertEqual(len(self.box), 1)
        with self.assertRaises(KeyError):
            self.box[5]
        self.assertEqual(pick(self.box, at=0), 1)
"""
PLAIN = """
import pytest
from shapes.inner import clamp, other
LOW = 1

@pytest.mark.parametrize(("value", "high"), [(9, 3), (8, 2)])
def test_it(value, high):
    unrelated = other()
    for step in range(2):
        assert clamp(value + step, LOW, high) == high
"""


def test_a_test_becomes_a_script_that_asks_for_values():
    made = script(UNITTEST, owner="BoxTest")
    assert [(step.do, step.code) for step in made.steps] == [
        ("run", "Kind = Box"), ("run", "box = Kind(3)"), ("run", "box.put(1)"),
        ("probe", "len(box)"), ("raises", "box[5]"), ("probe", "pick(box, at=0)"),
    ]  # fmt: skip
    assert "from shapes import Box" in made.prelude
    made = script(PLAIN)
    assert made.cases[0].sources == ("(9, 3)", "(8, 2)")
    assert [step.do for step in made.steps] == ["run", "loop"]
    block = "with a() as b:\n            self.assertTrue(b)\n"
    block = f"class T(B):\n    def test_it(self):\n        {block}"
    made = script(f"from x import a, B\n{block}", owner="T")
    assert made.steps[0].code == "with a() as b:\n    (b,)"
    with pytest.raises(NoScriptError, match="tmp_path"):
        script("def test_it(tmp_path):\n    assert tmp_path\n")


def test_what_does_not_bear_on_the_step_is_left_out():
    modules = frozenset(("shapes",))
    moment = Moment(bound=("value, high = (9, 3)",), path=(1, 0, 0),
                    names={"value": "9", "high": "3", "step": "0"})  # fmt: skip
    first, *more = snippets(script(PLAIN), moment, modules, {"shapes.inner": "shapes"})
    assert first.imports == ("from shapes import clamp",)
    assert (first.setup, first.call) == (("LOW = 1",), "clamp(9 + 0, LOW, 3)")
    assert any(way.imports == ("from shapes.inner import clamp",) for way in more)
    moment = Moment(bound=(), path=(5,), names={})
    first, *_ = snippets(script(UNITTEST, owner="BoxTest"), moment, modules, {})
    assert first.setup == ("Kind = Box", "box = Kind(3)", "box.put(1)")
    assert first.call == "pick(box, at=0)"


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        ("[1]", "[1, 2]", "at the end"), ("[2, 1]", "[1, 2]", "order"), ("[]", "[1]", "empty"),
        ("(1,)", "[1]", "tuple instead of list"), ("3", "4", "off by one"),
        ("True", "False", "True where it should be False"), ("'A'", "'a'", "case"),
        ("{1: 2}", "{1: 3}", "wrong values"), ("None", "1", "None"), ("<a>", "<b>", "wrong result"),
    ],
)  # fmt: skip
def test_a_difference_is_named_as_a_user_sees_it(got, want, words):
    found = difference(Effect(value=got, type="t"), Effect(value=want, type="t"))
    assert words in " ".join(found.titles)


def test_the_name_of_the_library_is_no_place():
    """A package in `src` whose `__init__.py` is changed: its name is in every report."""
    secrets = Secrets(paths=("src/pkg/__init__.py",), patch="", tests=(), functions=())
    assert leaks("This is with pkg 1.0.", secrets, ()) == ()
    assert leaks("This is in pkg.inner.", SECRETS, ()) != ()


def test_a_text_is_about_the_library_and_of_what_a_name_stands_for_last():
    lines = ("import pickle", "from shapes import Box")
    made = Snippet(imports=lines, setup=(), call="pickle.loads(Box(1))", is_value=True)
    assert subject_of(made, "shapes") == "`Box`"
    body = "    b = Box[int](1)\n    b = Box[int](2)\n    b.put(3)\n    assert b.all() == 4\n"
    source = f"from shapes import Box\ndef test_it():\n{body}"
    moment = Moment(bound=(), path=(3,))
    first, *_ = snippets(script(source), moment,
                         frozenset(("shapes",)), {})  # fmt: skip
    assert first.setup == ("b = Box[int](2)", "b.put(3)")
    assert subject_of(first, "shapes") == "`Box.all`"


def test_texts_vary_by_seed_and_say_what_was_seen():
    texts = [written(STORY, str(seed)) for seed in range(30)]
    assert len(set(texts)) > 20
    assert written(STORY, "7") == texts[7]
    for text in texts:
        assert "clamp(9, 1, 3)" in text
        assert "from shapes import clamp" in text
        assert "`9`" in text or "\n9\n" in text
        assert "`3`" in text or "\n3\n" in text
        assert leaks(text, SECRETS, CLAMP.facts()) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See pkg/inner.py.", "the file inner.py"), ("inner.py is wrong", "the file inner.py"),
        ("pkg.inner is at fault", "the module pkg.inner"), ("in `_bounded`", "_bounded"),
        ("test_upper_end fails", "the test test_upper_end"), ("at line 12", "a line number"),
        ("use `return min( value,high )` there", "of the fix"), ("clamp(9, 1, 3) gives 9", ""),
        (">>> from pkg.inner import clamp", ""),
    ],
)  # fmt: skip
def test_what_gives_the_place_or_the_fix_away_is_seen(text, found):
    said = leaks(text, SECRETS, ("clamp(9, 1, 3)",))
    assert found in " ".join(said) if found else said == ()


GOOD = "clamp ignores the upper end\n\n`clamp(9, 1, 3)` gives 9 for me. I had hoped for 3 there."


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (GOOD, ""), (f"<think>Hm.</think>\n{GOOD}", ""),
        (f"{GOOD} Change _bounded to return min(value, high).", "it gives something away"),
        ("It is wrong. " * 8, "it leaves out what was seen"), ("no", "it has 2 characters"),
        (None, "the model 'm' at"),
    ],
)  # fmt: skip
async def test_a_served_model_may_write_and_is_not_believed(answer, refused):
    async with scripted_server(always=answer or 500) as server:
        settings = ServedSettings(url=server.url, model="m", tries=3)
        issue = await write_issue(STORY, "0", SECRETS, ServedWriter(ServedModel(settings), "m"))
    assert issue is not None
    assert issue.refused.startswith(refused)
    assert issue.text == (written(STORY, "0") if refused else f"{GOOD}\n")
    # The model is told what a user saw: neither the fix nor its place.
    told = json.dumps(server.asked)
    assert "clamp(9, 1, 3)" in told
    assert "return min(value" not in told
    assert "inner" not in told


def test_removed_features_and_merged_changes_are_programs():
    found = list(removals(SHAPES))
    bodies = [one for one in found if one.operator == "remove_body"]
    assert {one.function for one in bodies} == {"area", "chunks"}
    assert all("raise NotImplementedError" in one.text for one in bodies)
    (chunks,) = (one for one in bodies if one.function == "chunks")
    assert '"""The items in lists of a size."""\n    raise NotImplementedError' in chunks.text
    one, two = SHAPES.replace("width * height", "width + height"), SHAPES.replace("min(", "max(")
    both = merged(SHAPES, [one, two])
    assert both == one.replace("min(", "max(")
    assert merged(SHAPES, [one, SHAPES.replace("width * height", "width - height")]) is None


def test_hidden_tests_are_gone_and_their_file_still_runs():
    rest = "\n\ndef test_c():\n    pass\n"
    source = f"class TestA:\n    # of b\n    def test_b(self):\n        pass{rest}"
    tree = {"tests/test_a.py": TreeFile(data=source.encode())}
    made = hide_tests(tree, ["tests/test_a.py::TestA::test_b"])
    assert made is not None
    assert made["tests/test_a.py"].data.decode() == f"class TestA:\n    pass{rest}"
    assert hide_tests(tree, ["tests/test_a.py::test_that_is_not_there"]) is None


def test_levels_count_facts():
    patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n-a\n+b\n"
    made = figures(style="natural", patch=patch, places=[("x", "f"), ("x", "g")],
                   fail_to_pass=["t"], pass_to_pass=["u"] * 3, depth=4)  # fmt: skip
    assert made == {"level": 3.0, "sites": 2.0, "files": 1.0, "failing_tests": 1.0,
                    "failing_share": 0.25, "fix_lines": 2.0, "depth": 4.0}  # fmt: skip
    assert level("tests", {"sites": 1, "fix_lines": 40}) == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"style": "prose"}, "expected one of tests, natural"),
        ({"kind": "several,releases"}, "made by themselves"),
        ({"kind": "several,magical"}, "kind 'magical'"),
        ({"writer_url": "http://x/v1", "style": "natural"}, "expected both"),
        ({"writer_url": "http://x/v1", "writer_model": "m"}, "--style natural"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_named(changed, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        request_for(tmp_path, **changed).check()


async def test_natural_tasks_hold_and_show_neither_tests_nor_fix(made, backend, capsys, tmp_path):
    """The whole of it: made, validated, filtered by level, and measured rates written down."""
    tasks, _, request, environment = await made(
        kind="procedural,several,removed", style="natural", count=4, per_function=3
    )
    assert {task.kind for task in tasks} == {"procedural", "several", "removed"}
    look = validate_tasks(request.out, environment, backend, jobs=2)
    assert [it.disagreements async for it in look] == [()] * len(tasks)
    store = TreeStore(request.out / "store")
    for task in tasks:
        text = task.problem_statement
        assert "shapes.py" not in text
        assert "test_" not in text
        assert "shapes import" in text or "import shapes" in text
        start, graded = store.get(task.base_commit), store.get(task.grade_tree)
        assert apply_patch(start, task.test_patch) == graded
        hidden = start["tests/test_shapes.py"].data.decode()
        for name in task.FAIL_TO_PASS:
            assert f"def {name.partition('[')[0].rpartition('::')[2]}(" not in hidden
        assert apply_patch(start, task.patch)["shapes.py"].data == SHAPES.encode()
        assert task.figures["sites"] == len(task.parts) or not task.parts
        if task.kind == "several":
            assert task.figures["level"] >= 2
            assert len({apply_patch(start, part)["shapes.py"].data for part in task.parts}) >= 2
    # Such a row is refused by a second look if one site is enough.
    broken = tmp_path / "enough"
    broken.mkdir()
    several = next(task for task in tasks if task.kind == "several")
    row = several.to_row() | {"parts": [several.patch]}
    (broken / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    (broken / "store").symlink_to(request.out / "store")
    look = validate_tasks(broken, environment, backend, jobs=1)
    assert ["mending all but one site is enough" in str(it.disagreements) async for it in look] == [
        True
    ]
    # A config chooses by level and kind.
    found = list(swe_tasks(str(request.out), split="all", levels=[2, 3], kinds=["several"]))
    assert {task.metadata["kind"] for task in found} == {"several"}
    with pytest.raises(DataError, match=r"levels \[9\].*levels here: \['1'"):
        list(swe_tasks(str(request.out), split="all", levels=[9]))
    # What a profile measured goes into the rows, and leaves the tasks the same.
    rates = tmp_path / "rates.jsonl"
    with rates.open("wb") as file:
        append_measured(
            file, Measured.of(found[0], [1.0, 0.0], failed=0, model="m", temperature=1.0)
        )
    capsys.readouterr()
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["tasks", "levels", str(request.out), "--rates", str(rates)])
        assert ended.value.code == 0
    assert f"solve rates of 1 of {len(tasks)} tasks" in capsys.readouterr().out
    again = {task.instance_id: task for task in read_tasks(request.out)}
    assert again[found[0].id].figures["solve_rate"] == 0.5
    assert sum(row["measured"] for row in summary(record_rates(request.out, {}))) == 1
