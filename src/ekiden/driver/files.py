"""Writing files so that they appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def check_folder(path: str | os.PathLike[str]) -> Path:
    """The path of a file to be written. Raises FileNotFoundError if its folder does not exist, and
    IsADirectoryError if it is one itself.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"write '{target}': no folder '{target.parent}'")
    if target.is_dir():
        raise IsADirectoryError(f"write '{target}': it is a folder")
    return target


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Give `write` a file beside `path` that takes its place when all is written.

    Whatever goes wrong, `path` is as it was and nothing is left behind. Raises OSError.
    """
    target = check_folder(path)
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        with open(partial, "xb") as file:
            write(file)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
