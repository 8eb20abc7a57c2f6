"""YAML as run files have it: numbers as people write them, in C where PyYAML has it."""

from __future__ import annotations

import re
from typing import Any

import yaml


def load_yaml(text: str) -> Any:
    """Read YAML; what cannot be read is an error in the words of the loader in Python.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_FastLoader)
    except yaml.YAMLError:
        return yaml.load(text, Loader=_Loader)


def dump_yaml(data: Any) -> str:
    """YAML that `load_yaml` reads back."""
    try:
        return yaml.dump(data, Dumper=_FastDumper, sort_keys=False, width=100)
    except UnicodeEncodeError:
        # Names of files may hold what UTF-8 cannot, and what is written in C is UTF-8.
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `2e-6` as the number people mean; YAML 1.1 wants `2.0e-6`."""


# In C, where PyYAML has it, since all of Python takes ten times as long.
class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # pyright: ignore[reportGeneralTypeIssues]
    """As `_Loader`."""


class _Dumper(yaml.SafeDumper):
    """Safe YAML that quotes what `_Loader` would read as a number."""


class _FastDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # pyright: ignore[reportGeneralTypeIssues]
    """As `_Dumper`."""


for _kind in (_Loader, _FastLoader, _Dumper, _FastDumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )
