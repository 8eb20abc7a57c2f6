"""Rows as the data sets publish them become tasks, with one `dataset` section each."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentrl_envs.swe import RepairTask, read_tasks
from agentrl_envs.swe.env import workspace_of
from agentrl_envs.swe.judge import LogReports
from agentrl_envs.swe.runners import node_ids

from agentrl.config import load_config
from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.errors import DataError
from agentrl.runtime.assembly.parts import make_env_factory
from agentrl.types import Task
from tests.envs.swe.swe_library import make_folder, record

DIFF = "--- a/astropy/io.py\n+++ b/astropy/io.py\n@@ -1 +1 @@\n-a\n+b\n"
TEST_DIFF = DIFF.replace("astropy/io.py", "astropy/tests/test_io.py")
BENCH = {
    "repo": "astropy/astropy",
    "instance_id": "astropy__astropy-12907",
    "base_commit": "d16bfe05a744909de4b27f5875fe0d4ed41ce607",
    "patch": DIFF,
    "test_patch": TEST_DIFF,
    "problem_statement": "It is wrong.",
    "hints_text": "",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": '["astropy/tests/test_io.py::test_a[x y]"]',
    "PASS_TO_PASS": '["astropy/tests/test_io.py::test_b"]',
    "environment_setup_commit": "298ccb478e6bf092953bca67a3d29dc6c35f6752",
}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "patch": DIFF.replace("astropy", "oauthlib"),
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": [],
    "image_name": "swebench/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "problem_statement": "Tokens are refused.",
}
R2E = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3_final:2d9617bd",
    "commit_hash": "2d9617bd",
    "problem_statement": "It crashes.",
    "expected_output_json": '{"TestA.test_x": "PASSED", "test_y": "PASSED", "test_z": "FAILED"}',
    "execution_result_content": json.dumps(
        {"old_commit_res_stdout": "FAILED t.py::TestA::test_x\nPASSED t.py::test_y"}
    ),
    "modified_files": ["Orange/a.py"],
}
ROWS = {"swe_bench": BENCH, "swe_gym": BENCH, "swe_smith": SMITH, "r2e_gym": R2E}


def load(reader: str, path: Path, rows: list[Any], **values: Any) -> list[Task]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = DatasetSection(
        source=f"agentrl_envs.swe:{reader}", args={"path": path.name}, **values
    )
    return load_tasks(section, base=path.parent)


def test_swe_bench_names_image_tests_and_what_runs_them(tmp_path: Path) -> None:
    (task,) = load("swe_bench", tmp_path / "v.jsonl", [BENCH], split="test")
    assert (task.id, task.prompt, task.split) == (BENCH["instance_id"], "It is wrong.", "test")
    record = workspace_of(task).task
    assert record.image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest"
    assert record.FAIL_TO_PASS == ("astropy/tests/test_io.py::test_a[x y]",)
    assert record.test_command[-1] == "astropy/tests/test_io.py"
    assert record.test_paths == ("astropy/tests/test_io.py",)
    assert record.variables("/r", "")["PYTHONPATH"] == "/r:/r/src:/r/lib"


def test_parquet_reads_as_lines_do_and_a_row_may_name_its_image(tmp_path: Path) -> None:
    row = {**BENCH, "FAIL_TO_PASS": json.loads(BENCH["FAIL_TO_PASS"]), "docker_image": "mine:1"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test.parquet")
    section = DatasetSection(source="agentrl_envs.swe:swe_bench", args={"path": "."}, split="test")
    (task,) = load_tasks(section, base=tmp_path)
    assert workspace_of(task).task.image == "mine:1"


def test_swe_gym_has_its_own_images(tmp_path: Path) -> None:
    (task,) = load("swe_gym", tmp_path / "g.jsonl", [BENCH])
    name = "xingyaoww/sweb.eval.x86_64.astropy_s_astropy-12907:latest"
    assert workspace_of(task).task.image == name


def test_the_patch_of_swe_smith_is_the_bug(tmp_path: Path) -> None:
    (task,) = load("swe_smith", tmp_path / "s.jsonl", [SMITH])
    place = workspace_of(task)
    assert (place.setup_patch, place.task.image) == (SMITH["patch"], SMITH["image_name"])
    # Turned round it is the fix, and that is what the record calls the patch.
    source = tmp_path / "oauthlib/io.py"
    source.parent.mkdir()
    source.write_text("b\n")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=place.task.patch.encode(), check=True)
    assert source.read_text() == "a\n"
    assert place.task.base_commit == "1fd52536"


def test_r2e_gym_mends_what_did_not_pass_before(tmp_path: Path) -> None:
    (task,) = load("r2e_gym", tmp_path / "r.jsonl", [R2E])
    place = workspace_of(task)
    assert (place.task.FAIL_TO_PASS, place.task.PASS_TO_PASS) == (("TestA.test_x",), ("test_y",))
    assert place.test_files == {"r2e_tests": "/root/r2e_tests"}


@pytest.mark.parametrize(
    ("reader", "field"),
    [
        ("swe_bench", "problem_statement"),
        ("swe_bench", "FAIL_TO_PASS"),
        ("swe_gym", "base_commit"),
        ("swe_smith", "image_name"),
        ("swe_smith", "problem_statement"),
        ("r2e_gym", "docker_image"),
        ("r2e_gym", "expected_output_json"),
    ],
)
def test_a_row_without_its_field_is_named(reader: str, field: str, tmp_path: Path) -> None:
    row = {name: value for name, value in ROWS[reader].items() if name != field}
    first = {**ROWS[reader], "instance_id": "other", "commit_hash": "other"}
    with pytest.raises(DataError, match=rf"a.jsonl, line 2.*missing or empty: {field}"):
        load(reader, tmp_path / "a.jsonl", [first, row])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"FAIL_TO_PASS": ["test_x (forms.tests.Case)"]}, "is no pytest node id.*skip_unsupported"),
        ({"repo": "django/django", "test_patch": DIFF}, "no Python file below tests/"),
        ({"FAIL_TO_PASS": "[broken"}, "FAIL_TO_PASS is not a list in JSON"),
        ({"FAIL_TO_PASS": ["test_x"], "PASS_TO_PASS": [], "test_patch": ""}, "which file to run"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words):
        load("swe_bench", tmp_path / "a.jsonl", [BENCH | change])


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    section = DatasetSection(source="agentrl_envs.swe:swe_bench", args={"path": "no.jsonl"})
    with pytest.raises(DataError, match=r"no.jsonl does not exist; expected a file \(.jsonl"):
        load_tasks(section, base=tmp_path)


def test_an_own_task_without_its_command_is_named(tmp_path: Path) -> None:
    row = {**record("x", "e", ["t.py::a"], []).to_row(), "test_command": []}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"tasks.jsonl, line 1: test_command is missing or empty"):
        list(read_tasks(tmp_path))


def test_own_tasks_load_by_split_with_the_shipped_configs(tmp_path: Path) -> None:
    made = make_folder(tmp_path / "swe-tasks")
    (tmp_path / "configs").mkdir()
    folder = Path(__file__).parents[3] / "configs"
    for name in ("swe_bubblewrap.yaml", "swe_docker.yaml"):
        config = load_config(folder / name)
        assert load_tasks(config.dataset, base=tmp_path / "configs") == made
        assert isinstance(make_env_factory(config.env, base=tmp_path)(), RepairTask)
        with pytest.raises(DataError, match="no tasks of split 'test'; splits here: \\['train'\\]"):
            load_tasks(config.eval.datasets["held_out"], base=tmp_path / "configs")


DJANGO = BENCH | {
    "repo": "django/django",
    "instance_id": "django__django-11099",
    "version": "3.0",
    "test_patch": DIFF.replace("astropy/io.py", "tests/auth_tests/test_validators.py"),
    "FAIL_TO_PASS": ["test_help (auth_tests.test_validators.UserTest)", "Trailing newline is bad."],
    "PASS_TO_PASS": [],
}
SYMPY = BENCH | {
    "repo": "sympy/sympy",
    "instance_id": "sympy__sympy-20590",
    "test_patch": DIFF.replace("astropy/io.py", "sympy/core/tests/test_basic.py"),
    "FAIL_TO_PASS": ["test_immutable"],
    "PASS_TO_PASS": [],
}


def test_repositories_with_a_runner_of_their_own_run_it(tmp_path: Path) -> None:
    django, sympy, old = (
        workspace_of(task).task
        for task in load(
            "swe_bench",
            tmp_path / "a.jsonl",
            [DJANGO, SYMPY, DJANGO | {"version": "1.9", "instance_id": "django__django-1"}],
        )
    )
    words = ("tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite", "--parallel", "1")
    assert django.test_command[1:] == (*words, "auth_tests.test_validators")
    assert old.test_command[1:] == (*words[:3], "auth_tests.test_validators")
    assert (django.test_log, sympy.test_log) == ("django", "sympy")
    assert sympy.test_command[1:] == (
        "bin/test",
        "-C",
        "--verbose",
        "sympy/core/tests/test_basic.py",
    )
    files = ["tests/auth_tests/test_validators.py"]
    place = "tests/auth_tests/test_validators.py::UserTest::test_help"
    assert node_ids(django, files) == {DJANGO["FAIL_TO_PASS"][0]: place}
    assert node_ids(sympy, ()) == {
        "test_immutable": "sympy/core/tests/test_basic.py::test_immutable"
    }


def test_rows_that_cannot_be_played_are_left_out_with_their_reasons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Caught: one such row keeps all the others of a file from being played."""
    other = BENCH | {"repo": "x/y", "FAIL_TO_PASS": ["test_x (forms.Case)"]}
    broken = {name: value for name, value in BENCH.items() if name != "problem_statement"}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (other, other, BENCH, broken)))
    args = {"path": path.name, "skip_unsupported": True}
    section = DatasetSection(source="agentrl_envs.swe:swe_bench", args=args)
    assert [task.id for task in load_tasks(section, base=tmp_path)] == [BENCH["instance_id"]]
    assert "3 of 4 rows left out:\n  2 of x/y (its tests cannot be run), such as " in caplog.text
    assert "1 of astropy/astropy (no task), such as " in caplog.text
    path.write_text(json.dumps(other) + "\n")
    with pytest.raises(DataError, match=r"1 of 1 rows left out:\n  1 of x/y"):
        load_tasks(section, base=tmp_path)


OTHERS = [
    BENCH | {"repo": "pytest-dev/pytest", "instance_id": "pytest-dev__pytest-5221",
             "FAIL_TO_PASS": ["testing/test_fixtures.py::TestShow::test_show[a b]"]},
    BENCH | {"repo": "sphinx-doc/sphinx", "instance_id": "sphinx-doc__sphinx-8273",
             "FAIL_TO_PASS": ["tests/test_build_manpage.py::test_man_make_section_directory"]},
    BENCH | {"repo": "psf/requests", "instance_id": "psf__requests-1963",
             "FAIL_TO_PASS": ["test_requests.py::RequestsTestCase::test_redirect"]},
]  # fmt: skip
STRANGE = BENCH | {
    "repo": "owner/strange",
    "instance_id": "owner__strange-1",
    "FAIL_TO_PASS": ["test_a (app.test_case.Case)"],
    "PASS_TO_PASS": [],
    "test_patch": DIFF.replace("astropy/io.py", "app/test_case.py"),
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_of_many_repositories_is_played_but_for_one_row(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [DJANGO, SYMPY, *OTHERS, STRANGE]
    if kind == "parquet":
        lists = ("FAIL_TO_PASS", "PASS_TO_PASS")
        flat = [
            row | {name: json.loads(row[name]) for name in lists if isinstance(row[name], str)}
            for row in rows
        ]
        pq.write_table(pa.Table.from_pylist(flat), tmp_path / "rows.parquet")
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "rows.jsonl").write_text(text)
    args: dict[str, Any] = {"path": f"rows.{kind}", "skip_unsupported": True}
    section = DatasetSection(source="agentrl_envs.swe:swe_bench", args=args)
    tasks = load_tasks(section, base=tmp_path)
    assert [task.metadata["repo"] for task in tasks] == [row["repo"] for row in rows[:-1]]
    assert "1 of 6 rows left out:\n  1 of owner/strange (its tests cannot be run)" in caplog.text


def test_a_config_names_the_runner_of_a_repository_and_how_its_results_are_read(
    tmp_path: Path,
) -> None:
    """Caught: two repositories with runners of their own, and no way to name a third."""
    runner = {
        "command": ["python", "-m", "unittest", "-v", "{labels}"],
        "log": {"passed": r"^(?P<name>.+) [.]{3} ok$", "failed": r"^FAIL: (?P<name>.+)$"},
        "env": {"LANG": "C.UTF-8"},
    }
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(STRANGE) + "\n")
    args: dict[str, Any] = {"path": path.name, "runners": {"owner/strange": runner}}
    section = DatasetSection(source="agentrl_envs.swe:swe_bench", args=args)
    (task,) = load_tasks(section, base=tmp_path)
    made = workspace_of(task).task
    assert made.test_command == ("python", "-m", "unittest", "-v", "app.test_case")
    assert made.test_env["LANG"] == "C.UTF-8"
    assert node_ids(made, ["app/test_case.py"]) == {
        "test_a (app.test_case.Case)": "app/test_case.py::Case::test_a"
    }
    reports = LogReports(made.test_log)
    reports.read(b"test_a (app.test_case.Case) ... ok\nFAIL: test_b (app.test_case.Case)\n")
    names = [f"test_{name} (app.test_case.Case)" for name in "abc"]
    assert (reports.hello, reports.states(names)) == (True, "pfm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": "make test"}, "command is 'make test'; expected a list of words"),
        ({"log": "nose"}, "log: .*'nose'"),
        ({"log": {"failed": "(?P<name>x)"}}, "of which passed is needed"),
        ({"log": {"passed": "(?P<name>"}}, r"log.passed: .* is no pattern"),
        ({"log": {"passed": "ok (.*)"}}, r"log.passed: .* has no group \(\?P<name>"),
        (
            {"parser": "x"},
            r"expected an object with command, log, env; got \['command', 'parser'\]",
        ),
    ],
)
def test_a_runner_that_says_nothing_of_use_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(BENCH) + "\n")
    args: dict[str, Any] = {
        "path": "a.jsonl",
        "runners": {"owner/strange": {"command": ["make", "test"], **change}},
    }
    section = DatasetSection(source="agentrl_envs.swe:swe_bench", args=args)
    with pytest.raises(DataError, match=words):
        load_tasks(section, base=tmp_path)
