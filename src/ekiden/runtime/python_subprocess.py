"""Command line of a new Python process with this program's module path.

A process that is started so shares nothing with the program: not its threads and their locks, not
the exit handlers of its libraries, not its memory. It does not run the program's main module.
"""

from __future__ import annotations

import json
import os
import sys

__all__ = ["python_subprocess_command"]

_BOOTSTRAP_CODE = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "


def python_subprocess_command(code: str, *arguments: str) -> list[str]:
    """Return the command line of a Python process that runs `code`, with `arguments` as
    `sys.argv[1:]`.

    Python runs isolated (`-I`): what its environment variables and the working folder say of
    modules was said to this program, and is in its path. Raises OSError where this program, such as
    one that embeds Python, has no interpreter to start.
    """
    if not sys.executable or not os.path.isfile(sys.executable):
        raise OSError(
            "this program cannot start Python in another process: sys.executable is "
            f"{sys.executable!r}"
        )
    folders = json.dumps([os.path.abspath(folder) for folder in sys.path])
    options = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
    if sys.pycache_prefix is not None:
        options += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return [sys.executable, *options, "-c", _BOOTSTRAP_CODE + code, folders, *arguments]
