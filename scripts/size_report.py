"""Report how many lines a change adds to each architecture layer: those of the working tree beside
those of the commit at which its branch left main.

    scripts/size_report.py [COMMIT]

Counts lines of sources (Python, Cython, C, other languages' bindings), comments and blank ones with
them. Exit status 1 says that a file of Python has more than MAX_FILE_LINES lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = {"src/": 700, "": 1000}
"""Of a file of Python: start of its path -> lines, the first that fits."""
SOURCE_SUFFIXES = tuple(
    ".py .pyi .pyx .pxi .c .h .cpp .hpp .def .rs .go .java .js .mjs .ts".split()
)
PACKAGE_PREFIX = "src/ekiden/"
BASE_BRANCHES = ("main", "origin/main")


def git(*args: str, stdin_text: str | None = None) -> bytes:
    """Run a git command and return its output. Raises CalledProcessError."""
    data = None if stdin_text is None else stdin_text.encode()
    command = ["git", "-C", str(REPOSITORY_ROOT), *args]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def base_commit(names: Iterable[str]) -> str:
    """Return the merge base of HEAD with the first existing branch; HEAD itself if none exists."""
    for name in names:
        try:
            return git("merge-base", "HEAD", name).decode().strip()
        except subprocess.CalledProcessError:
            continue
    return git("rev-parse", "HEAD").decode().strip()


def layer_by_folder(page: str) -> dict[str, str]:
    """Return the layer of each folder of the package, from the architecture page: "3", "8-9",
    "above".
    """
    rows = re.findall(rf"^\| `{PACKAGE_PREFIX}(\w+)/` \| (.+) \|$", page, re.MULTILINE)
    return {folder: _parse_layer(text) for folder, text in rows}


def _parse_layer(text: str) -> str:
    """Return the layer named in a text."""
    match = re.match(r"(?:between )?floors? (\d+)(?: and (\d+))?", text)
    if match is None:
        return "above"
    return "-".join(number for number in match.groups() if number)


def layer_and_folder(path: str, floor_of: Mapping[str, str]) -> tuple[str, str]:
    """Return the architecture layer and the folder under which a file is counted."""
    if path.startswith(PACKAGE_PREFIX):
        folder, _, remaining_path = path.removeprefix(PACKAGE_PREFIX).partition("/")
        return (
            (floor_of.get(folder, "above"), folder) if remaining_path else ("above", "(the root)")
        )
    if path.startswith("runtime/"):
        return "0", "runtime (C)"
    return "beside", path.partition("/")[0]


def is_source(path: str) -> bool:
    """Return whether a file's lines are counted."""
    return path.endswith(SOURCE_SUFFIXES)


def count_tree_lines() -> dict[str, int]:
    """Return the number of lines of each unignored file in the working tree."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode()
    paths = [path for path in listed.split("\0") if is_source(path)]
    return {
        p: (REPOSITORY_ROOT / p).read_bytes().count(b"\n")
        for p in paths
        if (REPOSITORY_ROOT / p).is_file()
    }


def count_lines_at(commit: str) -> dict[str, int]:
    """Return the number of lines of each file in a commit."""
    rows = [row.split("\t") for row in git("ls-tree", "-rz", commit).decode().split("\0") if row]
    blobs = {path: about.split()[2] for about, path in rows if is_source(path)}
    data = git("cat-file", "--batch", stdin_text="".join(f"{blob}\n" for blob in blobs.values()))
    counts, position = {}, 0
    for path in blobs:
        head_end = data.index(b"\n", position)
        size = int(data[position:head_end].split()[2])
        counts[path] = data.count(b"\n", head_end + 1, head_end + 1 + size)
        position = head_end + 1 + size + 1
    return counts


def sum_by_layer(lines: Mapping[str, int], floor_of: Mapping[str, str]) -> Counter[tuple[str, str]]:
    """Sum the lines by layer and folder."""
    sums: Counter[tuple[str, str]] = Counter()
    for path, count in lines.items():
        sums[layer_and_folder(path, floor_of)] += count
    return sums


def _layer_sort_key(key: tuple[str, str]) -> tuple[int, str, str]:
    """Return the sort key of a layer: numbered layers first, then those above, then the rest."""
    floor, folder = key
    number = {"above": 1000, "beside": 1001}.get(floor)
    return (int(floor.partition("-")[0]) if number is None else number, floor, folder)


def format_report(before: Mapping[str, int], after: Mapping[str, int], page: str) -> list[str]:
    """Return the report's lines: layer, folder, lines before and after, and the difference."""
    floor_of = layer_by_folder(page)
    old, new = sum_by_layer(before, floor_of), sum_by_layer(after, floor_of)
    order = sorted({*old, *new}, key=_layer_sort_key)
    rows = [(floor, folder, old[floor, folder], new[floor, folder]) for floor, folder in order]
    rows.append(("all", "", sum(old.values()), sum(new.values())))
    lines = [f"{'floor':7} {'folder':14} {'before':>8} {'after':>8}"]
    for floor, folder, was, after_count in rows:
        difference = f"{after_count - was:+}" if after_count != was else ""
        lines.append(f"{floor:7} {folder:14} {was:8,} {after_count:8,} {difference:>7}".rstrip())
    return lines


def long_file_messages(lines: Mapping[str, int]) -> list[str]:
    """Return a message for each Python file with too many lines."""
    return [
        f"{path}: {count} lines, at most {limit} expected"
        for path, count in lines.items()
        if path.endswith((".py", ".pyx")) and count > (limit := line_limit(path))
    ]


def line_limit(path: str) -> int:
    """Return the maximum number of lines of a Python file."""
    return next(limit for start, limit in MAX_FILE_LINES.items() if path.startswith(start))


def main(arguments: list[str]) -> int:
    """Print the report. Returns the exit status."""
    commit = base_commit(arguments or BASE_BRANCHES)
    before, after = count_lines_at(commit), count_tree_lines()
    print(f"lines beside {commit[:12]}:")
    print(
        "\n".join(
            format_report(before, after, (REPOSITORY_ROOT / "ARCHITECTURE.md").read_text("utf-8"))
        )
    )
    for complaint in (complaints := long_file_messages(after)):
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
