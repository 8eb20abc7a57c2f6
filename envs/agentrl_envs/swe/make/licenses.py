"""The licence of a library: read from its metadata, and whether tasks may be made of it.

SPDX expressions are read by `packaging.licenses`; PyPI's classifiers and the words that older
metadata use are named by their SPDX id where they have one.
"""

from __future__ import annotations

import email.message
import re
from collections.abc import Mapping

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

PUBLIC_DOMAIN = "LicenseRef-Public-Domain"
"""What SPDX has no id for: no licence is needed."""
PERMISSIVE = frozenset(
    (
        *("MIT", "MIT-0", "BSD", "0BSD", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC"),
        *("PSF-2.0", "Python-2.0", "Python-2.0.1", "CNRI-Python", "Unlicense", "CC0-1.0", "WTFPL"),
        *("BSL-1.0", "HPND", "AFL-3.0", "Zlib", "ZPL-2.1", "NCSA", "BlueOak-1.0.0", "X11"),
        *("MIT-CMU", "PostgreSQL", "UPL-1.0", "Artistic-2.0", PUBLIC_DOMAIN),
    )
)
"""Licences that ask for no more than that their text stays."""
_BY_CLASSIFIER: Mapping[str, str] = {
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "Public Domain": PUBLIC_DOMAIN,
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "Zero-Clause BSD (0BSD)": "0BSD",
    "Blue Oak Model License (BlueOak-1.0.0)": "BlueOak-1.0.0",
    "Zope Public License": "ZPL-2.1",
}
_BY_WORDS: Mapping[str, str] = {
    "mit": "MIT",
    "expat": "MIT",
    "mit/x11": "MIT",
    "bsd": "BSD",
    "new bsd": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "simplified bsd": "BSD-2-Clause",
    "2-clause bsd": "BSD-2-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache software": "Apache-2.0",
    "isc": "ISC",
    "psf": "PSF-2.0",
    "python": "PSF-2.0",
    "public domain": PUBLIC_DOMAIN,
    "unlicense": "Unlicense",
    "zlib": "Zlib",
    "cc0": "CC0-1.0",
}
"""Licence texts in the metadata of older libraries, without the words around them."""
_BY_TEXT = (
    ("gnu lesser general public", "LGPL"),
    ("gnu affero general public", "AGPL"),
    ("gnu general public license", "GPL"),
    ("mozilla public license", "MPL-2.0"),
    ("apache license", "Apache-2.0"),
    ("permission is hereby granted, free of charge", "MIT"),
    ("neither the name of", "BSD-3-Clause"),
    ("redistribution and use in source and binary forms", "BSD-2-Clause"),
    ("permission to use, copy, modify, and/or distribute this software", "ISC"),
    ("permission to use, copy, modify, and distribute this software", "ISC"),
    ("this is free and unencumbered software", "Unlicense"),
    ("python software foundation license", "PSF-2.0"),
    ("dedicated to the public domain", PUBLIC_DOMAIN),
    ("released into the public domain", PUBLIC_DOMAIN),
    ("placed in the public domain", PUBLIC_DOMAIN),
)


def read_license(fields: email.message.Message, text: str) -> str:
    """The SPDX expression of a library, or the text of its metadata; empty if there is none.

    Args:
        fields: of PKG-INFO.
        text: of its licence file; may be empty.
    """
    if expression := str(fields.get("License-Expression") or "").strip():
        return _canonical(expression) or expression
    by_text = next((spdx for words, spdx in _BY_TEXT if words in _flat(text)), "")
    for classifier in fields.get_all("Classifier") or ():
        parts = [part.strip() for part in str(classifier).split("::")]
        if parts[0] == "License" and len(parts) > 1 and parts[-1] != "OSI Approved":
            named = _BY_CLASSIFIER.get(parts[-1], parts[-1])
            # The classifier does not separate the kinds of BSD; the text does.
            return by_text if named == "BSD" and by_text.startswith("BSD") else named
    if by_text:
        return by_text
    said = str(fields.get("License") or "").strip().partition("\n")[0]
    return _canonical(said) or _in_words(said) or said[:60]


def _canonical(text: str) -> str:
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return ""


def _in_words(text: str) -> str:
    plain = re.sub(r"\(.*?\)|[,.](?=\s|$)", " ", text.lower())
    plain = re.sub(r"\b(?:the|licen[sc]ed?|under|version|v(?=\d))\b", " ", plain)
    return _BY_WORDS.get(_flat(plain), "")


def _flat(text: str) -> str:
    return " ".join(text.lower().split())


def is_permissive(license: str) -> bool:
    """True if one may take a licence that asks for no more than that its text stays.

    Of licences joined by `OR` one may choose, those joined by `AND` all hold. An exception (`WITH`)
    only takes from what is asked.

    Example:
        >>> is_permissive("GPL-2.0-only OR (MIT AND BSD-3-Clause)")
        True
    """
    words = re.findall(r"[()]|[^\s()]+", _canonical(license) or license)
    left = list(reversed(words))
    try:
        return _either(left) and not left
    except IndexError:
        return False


def _either(left: list[str]) -> bool:
    found = _both(left)
    while left and left[-1].upper() == "OR":
        left.pop()
        found = _both(left) or found
    return found


def _both(left: list[str]) -> bool:
    found = _one(left)
    while left and left[-1].upper() == "AND":
        left.pop()
        found = _one(left) and found
    return found


def _one(left: list[str]) -> bool:
    word = left.pop()
    if word == "(":
        found = _either(left)
        return left.pop() == ")" and found
    if left and left[-1].upper() == "WITH":
        left.pop()
        left.pop()
    return word in PERMISSIVE
