"""Making tasks: what archives and diffs may do, and whole runs on a library of our own."""

from __future__ import annotations

import asyncio
import contextlib
import email.parser
import functools
import http.server
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from agentrl_envs.swe import TreeStore, make, read_tasks
from agentrl_envs.swe.make import DEFAULT_PACKAGES, Rules, environment_for
from agentrl_envs.swe.make.declared import declared_packages
from agentrl_envs.swe.make.in_order import in_order
from agentrl_envs.swe.make.index import Index
from agentrl_envs.swe.make.journal import MakeJournal, only_one
from agentrl_envs.swe.make.licenses import is_permissive, read_license
from agentrl_envs.swe.make.sdist import read_sdist
from agentrl_envs.swe.make.suite import SuiteRun, TestResult
from agentrl_envs.swe.make.validate import validate_tasks
from agentrl_envs.swe.make.verdict import baseline_of, judge
from agentrl_envs.swe.patches import apply_patch, make_patch
from agentrl_envs.swe.trees import TreeFile, write_tree

from agentrl.cli import main
from agentrl.errors import ConfigError, DataError, SandboxError
from tests.envs.swe.make.swe_making import request_for
from tests.envs.swe.make.swe_sdists import SHAPES, TESTS, shapes, write_sdist

pytestmark = pytest.mark.slow


async def validated(request, environment, backend):
    look = validate_tasks(request.out, environment, backend, jobs=2)
    return {it.instance_id: it.disagreements async for it in look}


async def test_bugs_of_a_library_make_tasks_that_hold(made, backend, tmp_path):
    tasks, _, request, environment = await made()
    assert len(tasks) == 3
    assert set((await validated(request, environment, backend)).values()) == {()}
    store = TreeStore(request.out / "store")
    for task in tasks:
        assert task.FAIL_TO_PASS
        assert len(task.PASS_TO_PASS) > len(task.FAIL_TO_PASS)
        tree = store.get(task.base_commit)
        assert tree["shapes.py"].data != SHAPES.encode()
        assert apply_patch(tree, task.patch)["shapes.py"].data == SHAPES.encode()
        assert "never_tested" not in task.patch.partition("@@")[2].partition("\n-")[2]
        # The model reads what fails, not what to write.
        assert task.FAIL_TO_PASS[0] in task.problem_statement
        gold = [line[1:].strip() for line in task.patch.splitlines() if line[:2] == "+ "]
        assert not any(line in task.problem_statement for line in gold)
        assert (task.license, task.license_file) == ("MIT", "LICENSE")
        assert len(task.provenance["sha256"]) == 64
        # git agrees with our own reading of the diff.
        folder = tmp_path / task.instance_id
        write_tree(tree, folder)
        subprocess.run(["git", "apply", "-"], input=task.patch, text=True, cwd=folder, check=True)
        assert (folder / "shapes.py").read_text() == SHAPES


async def test_the_same_seed_makes_the_same_tasks_and_a_killed_run_goes_on(made):
    """A run that is killed while it writes leaves half a line in its findings."""
    first, progress, request, _ = await made()
    (findings,) = (request.out / "work" / "findings").iterdir()
    lines = findings.read_bytes().splitlines(keepends=True)
    findings.write_bytes(b"".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    (request.out / "tasks.jsonl").unlink()
    again, _, _, _ = await made()
    # How long tests took is measured, once per library, and kept with the findings.
    assert again == first
    assert progress.tries >= 3


async def test_what_a_release_mended_makes_tasks(made, backend, tmp_path):
    """The model must get the old tests: the new ones are what it is graded by."""
    mended = SHAPES.replace("max(low, min(value, high))", "sorted((low, value, high))[1]")
    older = SHAPES.replace("value < limit", "value <= limit")
    for version, source in (("0.9", older), ("1.1", mended)):
        tests = TESTS if version == "1.1" else TESTS.replace("== limit", ">= limit")
        files = shapes(**{"shapes.py": source, "tests/test_shapes.py": tests})
        write_sdist(tmp_path / "index", "shapes", version, files)
    tasks, progress, request, environment = await made(kind="releases")
    assert [task.version for task in tasks] == ["1.0"]
    assert "0 tests" not in tasks[0].problem_statement
    assert all("test_count_below" in name for name in tasks[0].FAIL_TO_PASS)
    assert "test_shapes.py" in tasks[0].test_patch
    assert "test_shapes.py" not in tasks[0].patch
    tree = TreeStore(request.out / "store").get(tasks[0].base_commit)
    assert b">= limit" in tree["tests/test_shapes.py"].data
    assert "not caught" in str(progress.refusals) or len(tasks) == 1
    assert set((await validated(request, environment, backend)).values()) == {()}


async def test_a_second_look_finds_rows_that_do_not_hold(made, backend):
    tasks, _, request, environment = await made()
    rows = [task.to_row() for task in tasks]
    rows[0]["FAIL_TO_PASS"].append(rows[0]["PASS_TO_PASS"].pop())
    rows[1]["PASS_TO_PASS"].append("tests/test_shapes.py::test_that_is_not_there")
    rows[2]["patch"] = rows[2]["patch"].replace("     ", "    ", 1)
    (request.out / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = await validated(request, environment, backend)
    said = [" ".join(found[row["instance_id"]]) for row in rows]
    assert "without the gold change, passes" in said[0]
    assert "with the gold change, fails: tests/test_shapes.py::test_that_is_not_there" in said[1]
    assert "patch" in said[2]


async def test_libraries_that_cannot_be_used_are_left_out_with_a_reason(made, tmp_path):
    index = tmp_path / "index"
    write_sdist(index, "bare", "1.0", {"bare.py": "x = 1\n"})
    write_sdist(index, "wrong", "1.0", {"wrong.py": "x = 1\n", "tests/test_x.py": TESTS})
    write_sdist(index, "json", "1.0", {"json.py": "x = 1\n", "tests/test_x.py": TESTS})
    write_sdist(index, "pluggy", "9.0", {"pluggy.py": SHAPES, "tests/test_x.py": TESTS})
    copyleft = {**shapes(), "PKG-INFO": "Name: gnu\nVersion: 1.0\nLicense-Expression: GPL-3.0\n\n"}
    write_sdist(index, "gnu", "1.0", copyleft)
    names = ("bare", "wrong", "json", "pluggy", "gnu", "absent", "shapes==7")
    tasks, progress, _, _ = await made(packages=names)
    assert tasks == []
    reasons = {
        "bare": "no tests",
        "wrong": "No module named 'shapes'",
        "json": "another copy of it at the standard library",
        "pluggy": "part of the test environment",
        "gnu": "GPL-3.0",
        "absent": "no source distribution",
        "shapes==7": "no source distribution of version 7; there are 1.0",
    }
    assert set(progress.refusals) == set(reasons)
    for name, part in reasons.items():
        assert part in progress.refusals[name], name


async def test_one_maker_per_folder_and_one_kind_of_tasks(made, tmp_path):
    """Also that a test environment which sandboxes cannot see is copied into them."""
    with only_one(tmp_path / "out"), pytest.raises(ConfigError, match="makes tasks there"):
        await made(hidden=True)
    assert len((await made(count=1))[0]) == 1
    with pytest.raises(ConfigError, match="another seed: seed was 0"):
        await made(count=1, seed=2)


async def test_a_mistyped_option_costs_nothing_until_something_was_made(made, tmp_path):
    (tmp_path / "empty").mkdir()
    assert (await made(index=str(tmp_path / "empty")))[0] == []
    assert (await made(packages=("shaeps",), seed=9))[0] == []
    tasks, _, _, _ = await made(packages=("shapes", "cirles"), count=1)
    assert [task.repo for task in tasks] == ["shapes"]
    # One that gave nothing may be corrected, one that gave tasks not be lost.
    assert (await made(packages=("shapes", "circles"), count=1))[0] == tasks
    with pytest.raises(ConfigError, match="another packages"):
        await made(packages=("circles",), count=1)


@pytest.mark.parametrize("kind", ["procedural", "releases"])
async def test_what_was_made_outlasts_a_network_that_fails(kind, made, tmp_path):
    """The file was written anew without the tasks of libraries that the index said nothing of."""
    older = shapes(**{"shapes.py": SHAPES.replace("value < limit", "value <= limit")})
    write_sdist(tmp_path / "index", "shapes", "0.9", older)
    with index_server(tmp_path / "index") as server:
        changed = {"kind": kind, "index": f"http://127.0.0.1:{server.server_port}", "count": 1}
        server.down = ("/",)
        tasks, progress, request, _ = await made(**changed)
        assert (tasks, list(progress.refusals)) == ([], ["shapes"])
        server.down = ()
        first, _, _, _ = await made(**changed)
        assert len(first) == 1
        shutil.rmtree(request.out / "work/downloads")
        for server.down in (("/",), (".tar.gz",)):
            again, progress, _, _ = await made(**{**changed, "count": 2})
            assert again == first
            assert "check the network" in progress.refusals["shapes"]


class IndexServer(http.server.ThreadingHTTPServer):
    """Has a state that the handler of a request can see."""

    down: tuple[str, ...] = ()


@contextlib.contextmanager
def index_server(folder):
    """A package index over HTTP that refuses paths with an ending of `down`."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            assert isinstance(self.server, IndexServer)
            if self.path.endswith(self.server.down):
                self.send_error(403)
                return
            # The page of a library lists all; the maker finds its own.
            name = self.path.rsplit("/", 1)[-1]
            self.path = f"/{name}"
            super().do_GET()

        def log_message(self, format, *args): ...

    handler = functools.partial(Handler, directory=folder)
    with IndexServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def test_sandboxes_that_fail_for_one_library_do_not_end_the_others(made, tmp_path):
    names = ("aa", "bb", "cc", "shapes")
    for name in names[:3]:
        files = {f"{name}.py": SHAPES, "tests/test_x.py": TESTS.replace("shapes", name)}
        write_sdist(tmp_path / "index", name, "1.0", {**shapes(), **files})
    tasks, progress, _, _ = await made(packages=names[1:], broken=("bb", "cc"), count=1)
    assert [task.repo for task in tasks] == ["shapes"]
    assert list(progress.refusals) == ["bb", "cc"]
    assert "bb: the sandboxes failed: supervisor 1 was killed" in progress.refusals["bb"]
    # Their numbers differ, yet it is one error three times; what was made is still there.
    with pytest.raises(SandboxError, match="supervisor 3 was killed"):
        await made(packages=names, broken=names, count=1)
    assert list(read_tasks(tmp_path / "out")) == tasks


def test_a_link_to_nothing_is_no_copy(tmp_path):
    (tmp_path / "shapes.py").symlink_to("/nowhere")
    asked = {"modules": {"shapes": {"shapes.py": 10}}, "places": [str(tmp_path)]}
    program = Path(make.__file__).with_name("inside") / "copies.py"
    command = [sys.executable, str(program), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none/out"])
def test_a_place_where_no_folder_can_be_is_named(place, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=f"{place}: .*; expected a folder that can be written"):
        environment_for(request_for(tmp_path, out=tmp_path / place))


@pytest.mark.parametrize("limit", [float("nan"), 0.0, -1.0])
def test_a_limit_for_suites_that_none_can_keep_is_refused(limit, tmp_path):
    request = request_for(tmp_path, rules=Rules(max_suite_s=limit))
    with pytest.raises(ConfigError, match=r"max-suite-s .*: expected seconds above 0"):
        environment_for(request)


def run_of(**outcomes):
    results = {
        name: TestResult(outcome=outcome, seconds=0.0, message="")
        for name, outcome in outcomes.items()
    }
    return SuiteRun(
        results=results, complete=True, stuck="", broken={}, modules={}, covered={}, seconds=1.0,
        output="",
    )  # fmt: skip


def test_a_file_whose_tests_change_their_names_is_not_believed():
    # As isodate's, parametrised by a set with None in it: some names are in every run by chance.
    runs = [
        run_of(**{"a.py::t[x-1]": "passed", "a.py::t[y-2]": "passed", "b.py::t": "passed"}),
        run_of(**{"a.py::t[x-1]": "passed", "a.py::t[y-3]": "passed", "b.py::t": "passed"}),
    ]
    assert baseline_of(runs).passed == ("b.py::t",)
    assert "a.py::t[x-1]" in baseline_of(runs).unsteady


def test_tests_that_do_not_always_do_the_same_count_nowhere():
    runs = [run_of(a="passed", b="passed", c="passed"), run_of(a="passed", b="failed", c="passed")]
    assert baseline_of(runs).passed == ("a", "c")
    assert baseline_of(runs).unsteady == ("b",)
    wanted = ("a", "b", "c", "d", "e")
    kept = {"d": "passed", "e": "passed", "c": "passed"}
    found = judge(wanted, [run_of(a="failed", b="failed", **kept), run_of(b="passed", **kept)])
    assert (found.fail_to_pass, found.pass_to_pass) == (("a",), ("c", "d", "e"))
    assert judge(wanted[:3], [run_of(a="passed")]).reason == "too much broken"
    assert judge(("a",), [run_of(a="passed")]).reason == "not caught"


def hostile(*members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, kind, target in members:
            item = tarfile.TarInfo(name)
            item.type, item.linkname = kind, target
            archive.addfile(item)
    return stream.getvalue()


def test_an_archive_cannot_leave_its_folder_and_brings_no_history():
    for name in ("x/../../etc/passwd", "/etc/passwd"):
        with pytest.raises(DataError, match="plain and relative"):
            read_sdist(hostile((name, tarfile.REGTYPE, "")), "x.tar.gz")
    names = ("x/a.py", "x/.git/HEAD", "x/a/__pycache__/a.pyc", "x/build/lib/a.py", "x/.tox/a.py")
    links = (("x/link", tarfile.SYMTYPE, "/etc/passwd"), ("x/hard", tarfile.LNKTYPE, "x/a.py"))
    members = [(name, tarfile.REGTYPE, "") for name in names]
    assert set(read_sdist(hostile(*members, *links), "x.tar.gz").tree) == {"a.py"}
    for data in (b"", b"\x1f\x8b garbage", b"PK\x03\x04 garbage"):
        with pytest.raises(DataError, match=r"not a source archive|one folder"):
            read_sdist(data, "x.tar.gz")


COUNTED = "".join(f"{number}\n" for number in range(60))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": "1\n2\n3\n"}, {"a": "1\n3\n"}),
        ({"a": "1\n2"}, {"a": "1\n2\n"}),
        ({"a": "1\n2\n"}, {"a": "1\n2"}),
        ({"a": "1"}, {"a": "2"}),
        ({}, {"new/a b.py": "x\n"}),
        ({"gone": "x\n", "b": "y\n"}, {"b": "z\n"}),
        ({"a": COUNTED}, {"a": COUNTED.replace("30\n", "").replace("1\n2\n", "") + "end"}),
        ({"a": "x\x0c\n\u2028y\r\n"}, {"a": "x\x0c\n\u2028z\r\n"}),
        ({"a": "-- x\n++ y\n"}, {"a": "-- y\n"}),
    ],
)  # fmt: skip
def test_diffs_are_read_back_by_us_and_by_git(old, new, tmp_path):
    """A form feed, U+2028 and `\\r` end no line for git; `splitlines` thinks they do."""
    before, after = (
        {path: TreeFile(data=text.encode()) for path, text in tree.items()} for tree in (old, new)
    )
    patch = make_patch(before, after)
    assert apply_patch(before, patch) == after
    write_tree(before, tmp_path)
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    found = {
        str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert found == {path: entry.data for path, entry in after.items()}
    if old:
        with pytest.raises(DataError, match="patch"):
            apply_patch({path: TreeFile(data=b"other\n") for path in before}, patch)


def test_a_store_sees_damage_and_refuses_paths_that_leave(tmp_path):
    store = TreeStore(tmp_path)
    tree = {"a.py": TreeFile(data=b"x"), "run": TreeFile(data=b"#!/bin/sh\n", executable=True)}
    name = store.put(tree)
    assert store.put(dict(reversed(tree.items()))) == name
    assert store.get(name) == tree
    for path in ("../a", "/a", "a/../../b", "a//b", "./a", ""):
        with pytest.raises(DataError, match="plain and relative"):
            store.put({path: TreeFile(data=b"")})
    for wrong in ("", "0" * 64, "../../etc/passwd"):
        with pytest.raises(DataError):
            store.get(wrong)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    with pytest.raises(DataError, match="make the tasks again"):
        store.get(name)


def test_findings_survive_a_cut_line(tmp_path):
    path = tmp_path / "findings.jsonl"
    journal = MakeJournal(path)
    journal.put("a", {"reason": "stuck"})
    journal.put("b", {"reason": ""})
    path.write_bytes(path.read_bytes()[:-5])
    again = MakeJournal(path)
    assert (again.get("a"), again.get("b")) == ({"reason": "stuck"}, None)
    again.put("b", {"reason": "x"})
    assert MakeJournal(path).get("b") == {"reason": "x"}


async def test_results_come_in_the_order_of_the_work():
    running, most, ended = 0, 0, []

    async def work(number):
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.03 if number % 3 == 0 else 0.01)
            ended.append(number)
        finally:
            running -= 1
        return number

    assert [result async for result in in_order(range(1, 10), work, 3)] == list(range(1, 10))
    assert (most, ended != sorted(ended)) == (3, True)
    ended.clear()
    async with contextlib.aclosing(in_order(range(1, 10), work, 3)) as results:
        async for result in results:
            if result == 2:
                break
    assert running == 0
    assert len(ended) < 6


@pytest.mark.parametrize(
    ("text", "permissive"),
    [("MIT", True), ("MIT AND Apache-2.0", True), ("(MIT OR BSD-3-Clause)", True), ("", False),
     ("GPL-3.0-only", False), ("MIT AND GPL-3.0-only", False), ("LGPL", False),
     ("GPL-2.0-only OR MIT", True), ("mit and (bsd-3-clause or apache-2.0)", True),
     ("(GPL-2.0-only OR MIT) AND LGPL-3.0-only", False), ("MIT OR", False), ("(MIT", False),
     ("Apache-2.0 WITH LLVM-exception", True), ("LicenseRef-Public-Domain", True)],
)  # fmt: skip
def test_which_licences_are_taken(text, permissive):
    assert is_permissive(text) is permissive


@pytest.mark.parametrize(
    ("field", "text", "license"),
    [
        ("License-Expression: apache-2.0 or mit", "", "Apache-2.0 OR MIT"),
        ("License: MIT OR Apache-2.0", "", "MIT OR Apache-2.0"),
        ("License: The MIT License (MIT)", "", "MIT"),
        ("License: Public Domain", "", "LicenseRef-Public-Domain"),
        ("Classifier: License :: Public Domain", "", "LicenseRef-Public-Domain"),
        (
            "Classifier: License :: OSI Approved :: BSD License",
            "neither the name of",
            "BSD-3-Clause",
        ),
        ("License: New BSD License", "", "BSD-3-Clause"),
        ("License: Apache License, Version 2.0", "", "Apache-2.0"),
        ("License: My Own", "", "My Own"),
        ("Name: x", "This is dedicated to the public domain.", "LicenseRef-Public-Domain"),
    ],
)
def test_the_words_of_a_licence_are_read(field, text, license):
    fields = email.parser.Parser().parsestr(f"{field}\n", headersonly=True)
    assert read_license(fields, text) == license


INFO = """Metadata-Version: 2.4
Name: asks
Version: 1.0
License-Expression: MIT
Requires-Dist: one>=2
Requires-Dist: two; python_version < "3"
Requires-Dist: three; extra == "tests"
Requires-Dist: four; extra == "docs"
Requires-Dist: pytest-cov; extra == "test"
Requires-Dist: shapes
"""


def test_declared_packages_are_those_of_run_time_and_of_tests(tmp_path):
    write_sdist(tmp_path / "index", "shapes", "1.0", shapes())
    groups = '[dependency-groups]\ntest = ["five==1", {include-group = "x"}]\ndocs = ["six"]\n'
    files = {**shapes(), "PKG-INFO": INFO, "pyproject.toml": groups}
    write_sdist(tmp_path / "index", "asks", "1.0", files)
    index = Index(str(tmp_path / "index"), tmp_path / "downloads")
    found = declared_packages(index, ("asks", "shapes", "not-there"))
    assert found == ("five==1", "one>=2", "three")


REQUIRES = """face>=20
# words
[:python_version < "3"]
old

[test]
tested

[docs]
sphinx
"""


def test_what_older_metadata_leave_out_is_read_beside_it(tmp_path):
    """Caught: sdists of older setuptools, whose PKG-INFO names no requirement (glom)."""
    files = {
        **shapes(),
        "PKG-INFO": "Metadata-Version: 2.1\nName: asks\nVersion: 1.0\nLicense: MIT\n",
        "asks.egg-info/requires.txt": REQUIRES,
        "requirements-test.txt": "-r other.txt\nplain  # words\n",
        "requirements-docs.txt": "furo\n",
    }
    write_sdist(tmp_path / "index", "asks", "1.0", files)
    index = Index(str(tmp_path / "index"), tmp_path / "downloads")
    assert declared_packages(index, ("asks",)) == ("face>=20", "plain", "tested")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tests/test_shapes.py": "import not_here\n" + TESTS},
         r"tests import not_here, .*--test-package not_here"),
        ({"shapes.py": "from shapes_fast import area\n", "shapes_fast.c": "int x;"},
         r"needs a compiler: shapes_fast.c"),
        ({"shapes.py": "", "src/shapes.c": "int x;"}, r"needs a compiler: .* src/shapes.c and 0 "),
    ],
)  # fmt: skip
async def test_what_a_library_lacks_is_named(change, words, made, tmp_path):
    files = {path: text for path, text in shapes(**change).items() if text}
    write_sdist(tmp_path / "index", "shapes", "1.1", files)
    _, progress, _, _ = await made(packages=("shapes==1.1",))
    assert re.search(words, progress.refusals["shapes==1.1"]), progress.refusals


def test_the_command_makes_and_checks_tasks(packages, tmp_path, capsys, monkeypatch):
    """As a user calls it; what was made must also pass the check that the command offers."""
    write_sdist(tmp_path / "index", "shapes", "1.0", shapes())
    (tmp_path / "out").mkdir()
    folder = tmp_path / "out" / "environment"
    shutil.copytree(packages, folder)
    stated = json.loads((folder / "environment.json").read_text())
    stated["packages"] = list(DEFAULT_PACKAGES)
    (folder / "environment.json").write_text(json.dumps(stated))
    make = ["tasks", "make", "swe", "--out", str(tmp_path / "out"), "--package", "shapes"]
    make += ["--index", str(tmp_path / "index"), "--sandbox", "process", "--count", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*make, "--kind", "magical"])
    assert ended.value.code == 2
    assert "procedural, several, removed, releases" in capsys.readouterr().err
    # Where an empty folder is taken for the current one, that is where tasks would be made.
    monkeypatch.chdir(tmp_path / "out")
    wrong = {
        (*make[1:], "--out", ""): "the folder is empty text",
        ("validate", ""): "the folder is empty text",
        ("validate", "/nonexistent"): "/nonexistent is no folder; expected one that",
        ("validate", str(tmp_path)): f"{tmp_path} holds no tasks.jsonl; expected one that",
    }
    for words, said in wrong.items():
        with pytest.raises(SystemExit) as ended:
            main(["tasks", *words])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err, words
    for words in (make, ["tasks", "validate", str(tmp_path / "out"), "--sandbox", "process"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "1 task from 1 library" in said
    assert "1 task in" in said
    assert "0 disagreements" in said
