"""Values of any source as JSON knows them."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A value as JSON knows it: dates as ISO text, decimals as text, bytes as base64."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        # Numpy scalars and arrays, from functions that build rows with them.
        return plain(value.tolist())
    return repr(value)
