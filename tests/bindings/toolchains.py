"""Toolchains of other languages; tests skip with the name of a missing one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ekiden import runtime

ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "bindings"
LIBRARY = runtime.library_path().resolve().parent
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""Go comes by pip, beside Python."""


def needs(*tools: str) -> pytest.MarkDecorator:
    """Leaves a test out where a program is missing, and names it."""
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def go(library: Path) -> dict[str, str]:
    """What builds programs in Go with the runtime of a folder, of what is on this machine."""
    return {
        "CGO_CFLAGS": f"-I{runtime.include_dir()}",
        "CGO_LDFLAGS": f"-L{library} -Wl,-rpath,{library}",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }


def has_node_headers() -> bool:
    """Whether addons of Node can be built."""
    node = shutil.which("node")
    places = [Path("/usr/include/node")]
    places += [Path(node).resolve().parents[1] / "include/node"] if node else []
    return any((place / "node_api.h").exists() for place in places)


BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that is to end soon: to optimise what runs once took half of its time."""


def jdk() -> Path | None:
    """The folder of programs of a JDK of 22 or later, which has foreign functions."""
    homes = [Path(os.environ.get("JAVA_HOME", "/nowhere")), *sorted(Path("/usr/lib/jvm").glob("*"))]
    for home in homes:
        release = home / "release"
        words = release.read_text().split('JAVA_VERSION="')[1:] if release.exists() else []
        if words and (home / "bin/javac").exists() and int(words[0].split(".")[0]) >= 22:
            return home / "bin"
    return None


NEEDS_NODE = pytest.mark.skipif(not has_node_headers(), reason="needs node_api.h of Node")
NEEDS_JDK = pytest.mark.skipif(
    jdk() is None, reason="needs a JDK of 22 or later, of JAVA_HOME or /usr/lib/jvm"
)


def run(command: Sequence[object], cwd: Path, **more: str | None) -> str:
    """What a program prints; it must end well. None takes a variable away."""
    variables = {
        **os.environ,
        "PATH": PATH,
        "EKIDEN_LIB_DIR": str(LIBRARY),
        **more,
    }
    inputs = {name: value for name, value in variables.items() if value is not None}
    done = subprocess.run(
        [str(item) for item in command], cwd=cwd, env=inputs, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
