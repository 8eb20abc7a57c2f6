"""The folder of a run that keeps the files of its images, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.errors import DataError
from agentrl.machine.files import replacing
from agentrl.machine.inside import within
from agentrl.types import Image


class ImageFolder:
    """Files of the images of a run, each once under its digest.

    Example:
        >>> folder = ImageFolder(Path("runs/my-run/images"))
        >>> folder.path("9f86d081884c7d65").name
        '9f86d081884c7d65'
    """

    def __init__(self, directory: Path, *, others: Sequence[Path] = ()) -> None:
        """A folder, made when the first image comes.

        Args:
            directory: gets what is kept.
            others: folders that are read where it lacks an image.
        """
        self.directory = Path(directory)
        self._others = tuple(others)
        self._kept: set[str] = set()

    def path(self, digest: str) -> Path:
        """The file of an image, whether or not it exists."""
        return self.directory / digest

    def keep(self, image: Image) -> None:
        """Write an image whole, unless it is there."""
        self._keep(image.digest, lambda: image.data)

    def copy(self, digest: str, source: ImageFolder) -> None:
        """Write the image of another folder, unless it is here.

        Raises:
            DataError: it is not there.
        """
        self._keep(digest, lambda: source.data(digest))

    def _keep(self, digest: str, data: Callable[[], bytes]) -> None:
        if digest in self._kept:
            return
        path = self.path(digest)
        if not path.is_file():
            content = data()
            self.directory.mkdir(parents=True, exist_ok=True)
            with replacing(path) as scratch:
                scratch.write_bytes(content)
        self._kept.add(digest)

    def data(self, digest: str) -> bytes:
        """The file of an image.

        Raises:
            DataError: it is not there.
        """
        places = (self.directory, *self._others)
        found = next((place for place in places if (place / digest).is_file()), self.directory)
        try:
            return within(found, found / digest).read_bytes()
        except OSError as error:
            raise DataError(
                f"image {digest} cannot be read from {self.directory}: {error}; rows name their "
                "images by digest, so keep that folder beside the trajectories of the run"
            ) from error
