"""scripts/replay: what of the generated code a change has changed.

    scripts/replay                       the working tree beside HEAD
    scripts/replay main                  beside the commit at which it left main
    scripts/replay 1a2b3c -p relay/sorts beside that commit, one program
    scripts/replay --names               names of what changed alone
    scripts/replay --update              write tests/replay/digests.txt

Only programs whose digests differ from those of the commit are compiled there, by the recorder of
that commit. The texts stand in two folders, `before` and `after`, a file for each program, target
and kernel; exit status 1 says that some differ.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import digests
from other_commit import ROOT, check_out, git, merge_base
from recorder import TARGETS
from replay_programs import GROUPS, Program

HERE = Path(__file__).parent.relative_to(ROOT)

Texts: TypeAlias = dict[str, dict[str, dict[str, str]]]
"""Program -> target -> item -> text."""


def programs(names: Iterable[str] = ()) -> dict[str, Program]:
    """Return the programs of those names, all by default. Imports the frameworks they need; exits
    naming a program that there is not."""
    expected = list(names)
    groups = dict.fromkeys(name.partition("/")[0] for name in expected) or GROUPS
    known: dict[str, Program] = {}
    for group in groups:
        if group not in GROUPS:
            sys.exit(
                f"replay: no group of programs is called {group!r}; there are {', '.join(GROUPS)}"
            )
        table = importlib.import_module(f"{group}_replays").PROGRAMS
        known |= {f"{group}/{name}": program for name, program in table.items()}
    for name in expected:
        if name not in known:
            sys.exit(f"replay: no program is called {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in expected or known}


def write_texts(folder: Path, names: Sequence[str], say: Callable[[str], object]) -> None:
    """Compile programs and write their texts: <folder>/<program>/<target>/<item>.txt."""
    chosen = programs(names)
    for number, (name, program) in enumerate(chosen.items(), 1):
        say(f"{number}/{len(chosen)} {name}")
        for target, items in program.texts().items():
            place = folder / name / target
            place.mkdir(parents=True, exist_ok=True)
            for item, text in items.items():
                (place / f"{item}.txt").write_text(text, "utf-8")


def read_texts(folder: Path) -> Texts:
    """Return what `write_texts` has written."""
    result: Texts = {}
    for path in sorted(folder.glob("*/*/*/*.txt")):
        group, name, target, item = path.relative_to(folder).with_suffix("").parts
        result.setdefault(f"{group}/{name}", {}).setdefault(target, {})[item] = path.read_text()
    return result


def report(before: Texts, after: Texts, names_only: bool = False) -> list[str]:
    """Return the lines that say what differs: a unified diff for each kernel, once for all targets
    on which it is the same."""
    lines: list[str] = []
    for program in sorted({*before, *after}):
        if program not in before:
            lines.append(f"=== {program}: new")
            continue
        old, new = before[program], after.get(program, {})
        for item, targets in digests.changed(old, new).items():
            if names_only:
                lines.append(f"{program} {item}: {', '.join(targets)}")
                continue
            by_diff: dict[str, list[str]] = {}
            for target in targets:
                a, b = (side.get(target, {}).get(item, "") for side in (old, new))
                diff = difflib.unified_diff(a.splitlines(), b.splitlines(), n=2, lineterm="")
                by_diff.setdefault("\n".join(list(diff)[2:]), []).append(target)
            for diff_text, same in by_diff.items():
                lines += [f"=== {program} {item}: {', '.join(same)}", diff_text]
    return lines


def _digests_at(commit: str) -> digests.Digests:
    """Return the digests that a commit has; none before there were any."""
    path = f"{HERE}/{digests.FILE.name}"
    if not git("ls-tree", "--name-only", commit, path):
        return {}
    return digests.read(git("show", f"{commit}:{path}"))


def write_texts_at(commit: str, folder: Path, names: Sequence[str]) -> None:
    """Write the texts of a commit's programs of those names that it has. Exits where its recorder
    fails."""
    with tempfile.TemporaryDirectory() as place:
        checkout = check_out(commit, Path(place) / "tree")
        own = checkout.folder / HERE
        if not own.is_dir():
            shutil.copytree(ROOT / HERE, own)
        command = [str(own / "replay_command.py"), "--write", str(folder)]
        command += [word for name in names for word in ("-p", name)]
        ran = subprocess.run([*checkout.python, *command], env=checkout.environment, cwd=place)
        if ran.returncode != 0:
            sys.exit(f"replay: recording {commit[:12]} failed")


def update(names: Sequence[str], say: Callable[[str], object]) -> None:
    """Write the digests of programs; of all, and no others, where no name is given."""
    chosen = programs(names)
    table = digests.read(digests.FILE.read_text()) if names else {}
    for number, (name, program) in enumerate(chosen.items(), 1):
        say(f"{number}/{len(chosen)} {name}")
        table[name] = digests.digests_of(program.texts())
    digests.FILE.write_text(digests.write(table, TARGETS))


def compare(name: str, names: Sequence[str], folder: Path, names_only: bool) -> int:
    """Print what differs between a commit and the working tree. Returns the exit status."""
    commit = merge_base(name)
    for side in ("before", "after"):
        shutil.rmtree(folder / side, ignore_errors=True)
        (folder / side).mkdir(parents=True)
    write_texts(folder / "after", names, _say)
    after = read_texts(folder / "after")
    known = _digests_at(commit)
    differ = [
        program
        for program, texts in after.items()
        if digests.changed(known.get(program, {}), digests.digests_of(texts))
    ]
    gone = [] if names else [p for p in known if p not in after]
    old = [p for p in differ if p in known or not known]
    if old:
        write_texts_at(commit, folder / "before", old)
    lines = report(read_texts(folder / "before"), {p: after[p] for p in differ}, names_only)
    lines += [f"=== {p}: gone" for p in gone]
    if not lines:
        print(f"replay: no text differs from {commit[:12]} ({len(after)} programs)")
        return 0
    print("\n".join(lines))
    print(f"replay: beside {commit[:12]}; the texts: {folder}")
    return 1


def _say(text: str) -> None:
    """Print progress, over the line before where standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[Kreplay: {text}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/replay", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("-p", "--program", action="append", default=[], metavar="GROUP/NAME")
    parser.add_argument("--names", action="store_true", help="no diffs")
    parser.add_argument("--update", action="store_true", help="write the digests")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write texts, compare nothing")
    folder = Path(tempfile.gettempdir()) / "ekiden-replay"
    parser.add_argument("--folder", type=Path, default=folder, help="where the texts are written")
    options = parser.parse_args(arguments)
    if options.write is not None:
        write_texts(options.write, options.program, _say)
        return 0
    if options.update:
        update(options.program, _say)
        return 0
    return compare(options.commit, options.program, options.folder, options.names)


if __name__ == "__main__":
    sys.exit(main())
