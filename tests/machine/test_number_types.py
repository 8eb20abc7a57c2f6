from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.schema import ModelSection
from agentrl.machine.number_types import fast_dtype


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("flags : fpu avx2 avx512f avx512_bf16", "bfloat16"),
        ("flags : fpu amx_bf16", "bfloat16"),
        ("Features : fp asimd bf16", "bfloat16"),
        ("flags : fpu avx2 avx512f avx512_vnni", "float32"),
    ],
)
def test_bfloat16_is_taken_where_the_processor_multiplies_it(
    flags: str, dtype: str, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\n{flags}\n")
    assert fast_dtype(cpuinfo, ()) == dtype
    assert fast_dtype(cpuinfo, (str(tmp_path),)) == "bfloat16"
    assert fast_dtype(tmp_path / "none", ()) == "float32"


def test_a_section_never_holds_auto() -> None:
    """Fails if a run could go on elsewhere in another arithmetic than it began with."""
    assert ModelSection().dtype == ModelSection(dtype="auto").dtype == fast_dtype()
    assert ModelSection(dtype="bfloat16").dtype == "bfloat16"
