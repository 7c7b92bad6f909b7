"""The extension's stub file lists what the extension exports."""

import ast
from pathlib import Path

import pytest

from ekiden import runtime
from ekiden.runtime.binding import _core

pytestmark = pytest.mark.quick

STUB = Path(runtime.__file__).parent / "binding" / "_core.pyi"


def stub_names() -> dict[str, set[str]]:
    """Public names of the stub; of each class, its public members."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef):
            members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            members |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            names[node.name] = {name for name in members if not name.startswith("_")}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
    return {name: members for name, members in names.items() if not name.startswith("_")}


def test_stub_lists_what_the_package_exports() -> None:
    from_core = {name for name in runtime.__all__ if hasattr(_core, name)}
    assert from_core == set(stub_names())


@pytest.mark.parametrize("name", [name for name, members in stub_names().items() if members])
def test_stub_lists_the_members_of_a_class(name: str) -> None:
    cls = getattr(_core, name)
    base = {name for plain in (tuple, str) if issubclass(cls, plain) for name in dir(plain)}
    if cls is not _core.Object and issubclass(cls, _core.Object):
        base |= set(dir(_core.Object))
    public = {member for member in dir(cls) if not member.startswith("_")} - base
    public |= set(getattr(cls, "__annotations__", ()))
    assert public == stub_names()[name]


@pytest.mark.parametrize("name", sorted(stub_names()))
def test_public_names_have_docstrings(name: str) -> None:
    assert getattr(_core, name).__doc__
