"""Source distributions of a library: found in a package index or a folder, fetched, never built."""

from __future__ import annotations

import hashlib
import html.parser
import importlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.machine.files import write_whole
from agentrl.plugins.distribution import install_command

PYPI = "https://pypi.org/simple"
"""The default index."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_ATTEMPTS = 4
_TIMEOUT_S = 60.0
_MAX_BYTES = 64 * 2**20


class NoAnswer(DataError):
    """The index could not be asked; the library may be well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One source distribution in an index."""

    name: str
    """Normalised name of the library."""
    version: str
    """Version in the file name."""
    file: str
    """File name."""
    url: str
    """Address of the file."""
    sha256: str
    """Hash as the index gives it; empty where it gives none."""
    uploaded: str
    """ISO 8601; empty where the index does not name it."""

    def provenance(self, prefix: str = "") -> dict[str, str]:
        """As it stands in a record."""
        parts = {"version": self.version, "file": self.file, "url": self.url, "sha256": self.sha256}
        return {f"{prefix}{name}": value for name, value in parts.items()}


class Index:
    """Releases by name, from a PEP 503 or PEP 691 index, or from a folder of source archives."""

    def __init__(self, location: str, downloads: Path) -> None:
        """Use the index at `location`, a URL or a folder; keep files in `downloads`."""
        self._location = location
        self._folder = None if "://" in location else Path(location).expanduser()
        self._downloads = downloads

    def releases(self, name: str) -> list[Release]:
        """All final source releases of a library, the newest first.

        Raises:
            DataError: no such library, or none with a source distribution.
            NoAnswer: the index could not be asked.
        """
        parse, version_of, final = _packaging(name)
        found: dict[str, Release] = {}
        for release in self._listed(name, parse):
            if final(release.version):
                # Of .tar.gz and .zip of one version the first by name: .tar.gz.
                found.setdefault(release.version, release)
        if not found:
            raise DataError(
                f"{name}: {self._location} has no source distribution of it; check the name"
            )
        return sorted(found.values(), key=lambda item: version_of(item.version), reverse=True)

    def fetch(self, release: Release) -> bytes:
        """The bytes of a source distribution; from `downloads` if they are there.

        Raises:
            DataError: other bytes than the index promised.
            NoAnswer: the index could not be asked.
        """
        kept = self._downloads / release.file
        if kept.exists() and _is(data := kept.read_bytes(), release):
            return data
        data = self._read(release.url)
        if not _is(data, release):
            raise DataError(
                f"{release.url}: SHA-256 is {hashlib.sha256(data).hexdigest()}, the index says "
                f"{release.sha256}; do not use this file"
            )
        self._downloads.mkdir(parents=True, exist_ok=True)
        write_whole(kept, data)
        return data

    def _listed(self, name: str, parse: Callable[[str], str | None]) -> Iterable[Release]:
        if self._folder is not None:
            links = [
                (path.name, path.resolve().as_uri(), _digest(path), "")
                for path in sorted(self._folder.glob("*"))
                if path.is_file() and parse(path.name)
            ]
        else:
            url = f"{self._location.rstrip('/')}/{name}/"
            links = sorted(_links(url, self._read(url)))
        for file, url, sha256, uploaded in links:
            version = parse(file)
            if version is not None:
                yield Release(
                    name=name, version=version, file=file, url=url, sha256=sha256, uploaded=uploaded
                )

    def _read(self, url: str) -> bytes:
        request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
        for attempt in range(_ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                    data = answer.read(_MAX_BYTES + 1)
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                status = getattr(error, "code", None)
                if status == 404:
                    raise DataError(f"{url}: not found; check the name of the library") from None
                if attempt + 1 == _ATTEMPTS or (status and status < 500 and status != 429):
                    raise NoAnswer(
                        f"{url}: {error}; check the network, give another --index, or a folder of "
                        "source archives as --index FOLDER"
                    ) from error
                time.sleep(2.0**attempt)
                continue
            if len(data) > _MAX_BYTES:
                raise DataError(f"{url} is larger than {_MAX_BYTES >> 20} MiB")
            return data
        raise AssertionError("the last attempt returns or raises")


def _is(data: bytes, release: Release) -> bool:
    return not release.sha256 or hashlib.sha256(data).hexdigest() == release.sha256


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _packaging(
    name: str,
) -> tuple[Callable[[str], str | None], Callable[[str], Any], Callable[[str], bool]]:
    """Functions of file names and versions: (version of a file name, sort key, is it final)."""
    try:
        names = importlib.import_module("packaging.utils")
        versions = importlib.import_module("packaging.version")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"making tasks needs the package {error.name!r}; run {install_command('swe')}"
        ) from error

    def parse(file: str) -> str | None:
        try:
            found, version = names.parse_sdist_filename(file)
        except names.InvalidSdistFilename:
            return None
        return str(version) if found == names.canonicalize_name(name) else None

    def final(version: str) -> bool:
        return not versions.Version(version).is_prerelease

    return parse, versions.Version, final


def _links(url: str, data: bytes) -> list[tuple[str, str, str, str]]:
    """(file, URL, SHA-256, upload time) of what an index page lists, without what was yanked."""
    if data.lstrip()[:1] == b"{":
        try:
            files = json.loads(data)["files"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{url}: not a page of a package index: {error!r}") from None
        return [
            (
                item["filename"],
                urllib.parse.urljoin(url, item["url"]),
                item.get("hashes", {}).get("sha256", ""),
                item.get("upload-time") or "",
            )
            for item in files
            if not item.get("yanked")
        ]
    page = _Page()
    page.feed(data.decode("utf-8", "replace"))
    found: list[tuple[str, str, str, str]] = []
    for attributes in page.anchors:
        if "data-yanked" in attributes or not attributes.get("href"):
            continue
        target, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(url, attributes["href"]))
        file = urllib.parse.unquote(target.rsplit("/", 1)[-1])
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        found.append((file, target, sha256, attributes.get("data-upload-time") or ""))
    return found


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[Mapping[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.anchors.append({name: value or "" for name, value in attrs})
