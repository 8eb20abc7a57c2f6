"""The parts of this machine that a namespace sandbox shows."""

from __future__ import annotations

from pathlib import Path

from agentrl_sandboxes.host.layout import hidden, root_steps


def test_only_what_programs_need_is_shown_of_usr(tmp_path: Path) -> None:
    # Fails if /usr is shown whole: sources and settings that a machine keeps there are readable.
    for place in ("bin", "lib", "share", "src/linux", "stuff", "empty", "local/bin", "local/go"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("local/etc", "local/src", "src", "stuff", "bin", "local/go"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "file").write_text("x")
    (tmp_path / "linked").symlink_to(tmp_path / "stuff")
    found = {str(Path(path).relative_to(tmp_path)) for path in hidden((), tmp_path)}
    assert found == {"src", "stuff", "local/etc", "local/src"}
    shown = [str(tmp_path / "src" / "linux"), str(tmp_path / "stuff")]
    found = {str(Path(path).relative_to(tmp_path)) for path in hidden(shown, tmp_path)}
    assert found == {"local/etc", "local/src"}


def test_a_device_that_can_be_mapped_is_there_only_where_a_cgroup_counts_it() -> None:
    for counted, source in ((True, "/dev/full"), (False, "/dev/zero")):
        steps = root_steps(2**20, counted=counted)
        assert ("device", source, "/dev/zero") in steps
        assert ("device", "/dev/full", "/dev/full") in steps
