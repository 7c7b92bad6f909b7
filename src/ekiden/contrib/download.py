"""Downloads over HTTP with TVM's names: each file is fetched once and written atomically."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

from ekiden.runtime.errors import EkidenError

__all__ = ["DownloadError", "download", "download_testdata"]

LOG = logging.getLogger(__name__)
TEST_DATA_VARIABLE = "TEST_DATA_ROOT_PATH"
"""Environment variable that names the folder of `download_testdata`."""
DEFAULT_TEST_DATA_FOLDER = Path("~/.ekiden_test_data")
TIMEOUT_S = 60
"""Seconds without an answer after which an attempt fails."""


class DownloadError(EkidenError, OSError):
    """Error of a failed download."""


def download(
    url: str,
    path: str | os.PathLike[str],
    overwrite: bool = False,
    size_compare: bool = False,
    retries: int = 3,
) -> None:
    """Download a file over HTTP.

    Args:
        url: its address.
        path: where it is saved; missing folders are made.
        overwrite: whether a file that is there is fetched again.
        size_compare: whether a file that is there is fetched again if the server states another
            size.
        retries: the number of attempts.

    Raises:
        DownloadError: no attempt succeeded. A file that was there stays.
    """
    target = Path(path).resolve()
    if target.is_file() and not overwrite:
        if not size_compare or _remote_size(url) in (None, target.stat().st_size):
            return
        LOG.warning("%s differs in size from %s: downloaded again", target, url)
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, retries + 1):
        try:
            _fetch_atomically(url, target)
            return
        except (OSError, ValueError) as error:
            if attempt == retries:
                raise _download_error(url, target, error) from error
            LOG.warning("download %s: attempt %d of %d: %s", url, attempt, retries, error)


def download_testdata(
    url: str,
    relpath: str,
    module: str | Sequence[str] | None = None,
    overwrite: bool = False,
) -> str:
    """Download a file into the folder of test data, once, and return its path.

    The folder is `~/.ekiden_test_data`, or what the environment variable TEST_DATA_ROOT_PATH names.

    Args:
        url: its address.
        relpath: its path below the folder and `module`.
        module: the name of a folder, or names of folders within each other.
        overwrite: whether a file that is there is fetched again.

    Raises:
        DownloadError: as `download`.
    """
    folders = [] if module is None else [module] if isinstance(module, str) else [*module]
    root = Path(os.environ.get(TEST_DATA_VARIABLE) or DEFAULT_TEST_DATA_FOLDER).expanduser()
    path = root.joinpath(*folders, relpath)
    download(url, path, overwrite)
    return str(path)


def _fetch_atomically(url: str, target: Path) -> None:
    """Fetch a file to a temporary name and rename it, so that a partial file never has its final
    name.
    """
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer,
        ):
            shutil.copyfileobj(answer, file)
        os.replace(partial, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)


def _remote_size(url: str) -> int | None:
    """Return the Content-Length of a remote file; None if it is not stated or the file is
    missing.
    """
    request = urllib.request.Request(url, method="HEAD")
    with (
        suppress(OSError, ValueError),
        urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer,
    ):
        stated = answer.headers.get("Content-Length")
        return None if stated is None else int(stated)
    return None


def _download_error(url: str, target: Path, error: Exception) -> DownloadError:
    """Return the error of the last attempt, with a hint for users without a network."""
    reason = error.reason if isinstance(error, URLError) else error
    return DownloadError(
        f"download {url}: {reason}; without a network, put the file at {str(target)!r}"
    )
