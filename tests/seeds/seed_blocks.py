"""The code in the seed documents, read where they lie. Nothing of them is copied here.

Each document says in its own way where code stands. What is found has a digest of its text without
white space, by which `seed_programs.PROGRAMS` says what becomes of it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A piece of code of a document."""

    seed: str
    """The number of the document: "003"."""
    place: int
    """Its place among those of the document."""
    text: str

    @property
    def digest(self) -> str:
        """What the text is, whatever its white space."""
        return hashlib.blake2b(flat(self.text).encode(), digest_size=4).hexdigest()

    def __str__(self) -> str:
        return f"{self.seed}.{self.place} ({self.digest})"


def seeds_folder() -> Path | None:
    """The folder `shared/seeds` beside the repository or further up; None where there is none."""
    above = Path(__file__).resolve().parents
    return next((p / "shared/seeds" for p in above if (p / "shared/seeds").is_dir()), None)


def flat(text: str) -> str:
    """Without white space, and without template arguments, which one of the documents has lost."""
    return re.sub(r"\s|<[\w/.:]*>", "", text)


def seed_text(number: str) -> str:
    """The whole text of a document."""
    folder = seeds_folder()
    assert folder is not None, "asked for only where there is one"
    (path,) = folder.glob(f"{number}_*.txt")
    return path.read_text()


def code_blocks() -> list[CodeBlock]:
    """Those of all documents. A document that no rule is known for is a KeyError."""
    folder = seeds_folder()
    if folder is None:
        return []
    names = sorted(path.name[:3] for path in folder.glob("*.txt"))
    return [
        CodeBlock(name, place, text)
        for name in names
        for place, text in enumerate(RULES[name](seed_text(name)))
    ]


# How each document shows code ---------------------------------------------------------------------


def _marked(text: str) -> Iterator[str]:
    """After `.. code:: c` and its like, in a text that has lost its lines. A block is one of
    another document that begins the same; else a declaration; else a piece that nobody knows."""
    others = {flat(_without_title(item)): item for item in _numbered(seed_text("004"))}
    for marker in re.finditer(r"\.\. code(?:-block)?:: \w+ ", text):
        rest = text[marker.end() :]
        squeezed = flat(rest[:4000])
        same = [block for key, block in others.items() if squeezed.startswith(key)]
        declaration = re.match(r"struct .*?};", rest)
        yield same[0] if same else declaration[0] if declaration else rest[:200]


def _without_title(block: str) -> str:
    """A block of Python without a comment at its top, which one of the documents lacks."""
    return re.sub(r"\A# .*\n", "", block)


def _numbered(text: str) -> Iterator[str]:
    """Lines 1, 2, ... n that are nothing but numbers, then n lines of code."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        numbers = enumerate(lines[at:], 1)
        count = len(list(takewhile(lambda item: item[1].strip() == str(item[0]), numbers)))
        if count:
            yield "\n".join(lines[at + count : at + 2 * count])
        at += max(1, 2 * count)


def _declarations(text: str) -> Iterator[str]:
    """Runs of lines that end or begin as those of C++ do; blank lines inside of braces belong."""
    block: list[str] = []
    for line in [*text.split("\n"), "."]:
        bare = line.strip()
        is_code = bare.endswith((";", "{", "}")) or bare == "..." or bare.startswith("//")
        if is_code and not bare.startswith("Arguments:"):
            block.append(line)
        elif block and (bare or "".join(block).count("{") == "".join(block).count("}")):
            yield "\n".join(block)
            block = []


_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.Import, ast.With, ast.Assert, ast.FunctionDef)


def _statements(text: str) -> Iterator[str]:
    """Lines without a blank one between them that are Python and do something."""
    for group in re.split(r"\n\s*\n", text):
        result = _parsed(group) or _parsed(f"{group.rstrip()}\n    pass")
        if (
            group.isascii()
            and result
            and any(isinstance(item, _STATEMENTS) for item in result.body)
        ):
            yield group


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


RULES: dict[str, Callable[[str], Iterator[str]]] = {
    "000": _marked,
    "001": _declarations,
    "002": _marked,
    "003": _statements,
    "004": _numbered,
}
"""Document -> how its code is found."""


# What documents name without code -----------------------------------------------------------------


def described_instructions() -> dict[str, tuple[str, ...]]:
    """The instructions that seed 000 describes, with the names of their operands."""
    kind = r"(?:RegName|Index|uint32_t|int64_t|DLDataType)\*?"
    heading = re.compile(rf"(\w+) \^+ (?:\*\*Arguments\*\*: :: ((?:{kind} \w+;? )*))?")
    part = (
        seed_text("000").partition("Instruction Set ~~~")[2].partition("Object Representation")[0]
    )
    return {
        result[1]: tuple(re.findall(rf"{kind} (\w+)", result[2] or ""))
        for result in heading.finditer(part)
    }


def proposed_instructions() -> list[str]:
    """The instructions that seed 001 proposes: a word on a line, then a line of arguments."""
    part = seed_text("001").partition("Instruction Set\n")[2].partition("Object Representation")[0]
    return re.findall(r"^(\w+)\n\nArguments:", part, re.MULTILINE)
