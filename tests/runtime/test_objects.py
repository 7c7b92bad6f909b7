"""Objects of types defined elsewhere: in C++ by a library loaded at run time, and in Python."""

import copy
import gc
import json
import pickle
import shutil
import subprocess
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.runtime.errors import LoadError

SOURCE = Path(__file__).parents[1] / "c/kinds.cpp"


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> runtime.Module:
    """The C++ library with the types of `kinds`; it stays loaded."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: install g++ or clang++")
    output = tmp_path_factory.mktemp("kinds") / "kinds.so"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", f"-I{runtime.include_dir()}"]
    command += [str(SOURCE), str(runtime.library_path()), "-o", str(output)]
    subprocess.run(command, check=True)
    return runtime.load_module(output)


def test_type_of_cpp_is_used_by_the_names_of_its_fields(tmp_path: Path) -> None:
    """Created, printed, changed, passed to a C++ function and saved, with no Python for it."""
    my_expr = runtime.object_class("kinds.MyExpr")
    expr = my_expr(value=3)
    assert repr(expr) == "kinds.MyExpr(value=3)"
    expr.value = 41
    assert expr.value == 41
    result = runtime.get_global_func("kinds.add_one")(expr)
    assert type(result) is my_expr
    assert (result.value, expr.value) == (42, 41)
    (tmp_path / "expr.json").write_text(ekiden.save_json(result))
    loaded: Any = ekiden.load_json((tmp_path / "expr.json").read_text())
    assert loaded.value == 42
    assert ekiden.structural_equal(loaded, result)


def test_classes_follow_the_inheritance_of_types() -> None:
    named = runtime.make_node("kinds.Named", value=5, name="five")
    assert isinstance(named, runtime.object_class("kinds.MyExpr"))
    assert (named.type_key, named.value, named.name, named.next) == ("kinds.Named", 5, "five", None)
    assert named.doubled() == 10
    runtime.get_global_func("kinds.bump")(named, 3)
    assert named.value == 8
    assert runtime.fields_of(named)["name"] == "five"
    assert {"value", "name", "next", "doubled"} <= set(dir(named))
    named.next = runtime.make_node("kinds.MyExpr", value=1)
    assert named.next.value == 1


def test_object_field_refuses_wrong_values() -> None:
    expr = runtime.make_node("kinds.MyExpr", value=1)
    with pytest.raises(TypeError, match="value"):
        expr.value = "text"
    with pytest.raises(AttributeError, match="'MyExpr' object has no attribute 'missing'"):
        _ = expr.missing
    with pytest.raises(TypeError, match="'colour' is not one of its fields: value"):
        runtime.make_node("kinds.MyExpr", colour=1)
    with pytest.raises(TypeError, match="MyExpr: expected at most 1 fields, got 2"):
        runtime.object_class("kinds.MyExpr")(1, 2)
    with pytest.raises(TypeError, match="'value' is given twice"):
        runtime.object_class("kinds.MyExpr")(1, value=2)
    with pytest.raises(ValueError, match=r"no type has the key 'kinds\.Nothing'"):
        runtime.object_class("kinds.Nothing")
    with pytest.raises(IndexError, match="code 7"):
        runtime.get_global_func("kinds.refuse")(7)


def test_objects_compare_by_meaning() -> None:
    def tree(leaf: int) -> Any:  # noqa: ANN401
        inside = runtime.make_node("kinds.Named", value=leaf, name="leaf")
        return runtime.make_node("kinds.Named", value=1, name="root", next=inside)

    assert runtime.structural_equal(tree(2), tree(2))
    assert not runtime.structural_equal(tree(2), tree(3))
    assert runtime.structural_hash(tree(2)) == runtime.structural_hash(tree(2))
    assert runtime.structural_hash(tree(2)) != runtime.structural_hash(tree(3))
    assert tree(2) != tree(2)
    assert runtime.structural_equal([1, {"a": tree(2)}], [1, {"a": tree(2)}])


def test_python_class_for_a_type_of_cpp() -> None:
    before = runtime.object_class("kinds.Named")
    try:

        @runtime.register_object("kinds.Named")
        class Named(runtime.object_class("kinds.MyExpr")):  # type: ignore[misc]
            def __init__(self, name: str) -> None:
                super().__init__(value=len(name), name=name)

            def shout(self) -> str:
                return self.name.upper()  # type: ignore[no-any-return]

        result = Named("anna")
        assert (result.value, result.shout(), result.doubled()) == (4, "ANNA", 8)
        back = runtime.convert(lambda x: x)(result)  # type: ignore[operator]
        assert type(back) is Named
        assert isinstance(runtime.load_json(runtime.save_json(result)), Named)
    finally:
        runtime.register_object("kinds.Named")(before)


@runtime.register_object("test.Point")
class Point(runtime.Object):
    """Defined in Python, known to all."""

    x: float
    y: float = 0.5
    tags: list[str]
    anything: object = None


@runtime.register_object("test.Point3", frozen=True)
class Point3(Point):
    """Inherits fields."""

    z: int = 7


def test_type_defined_in_python() -> None:
    point = Point(1, tags=["a", "b"])
    assert (point.x, point.y, point.tags, point.anything) == (1.0, 0.5, ["a", "b"], None)
    point.anything = point3 = Point3(1.0, 2.0, [], None, 3)
    assert isinstance(point.anything, Point3)
    assert (point3.z, point3.type_key) == (3, "test.Point3")
    with pytest.raises(AttributeError, match="Point3: field 'z' is read-only"):
        point3.z = 4
    with pytest.raises(TypeError):
        point.tags = 3
    with pytest.raises(TypeError):
        Point(1.0)
    other = Point(1, tags=["a", "b"], anything=Point3(1.0, 2.0, [], None, 3))
    assert runtime.structural_equal(point, other)


def test_json_keeps_every_kind_of_value() -> None:
    values = {
        "scalars": [None, True, -(2**63), 1.5, float("inf"), "text", b"\x00\xff" * 9],
        "containers": [(1, (2, [3])), runtime.ADT(4, ("x",)), runtime.Shape((2, 3)), {1: "one"}],
        "others": [runtime.DataType("bfloat16"), runtime.Device(2, 1)],
    }
    point = Point(1.0, tags=[], anything=values)
    loaded: Any = runtime.load_json(runtime.save_json(point))
    assert loaded.anything == values
    kinds = [type(value) for value in loaded.anything["containers"]]
    # a tuple is the value of tag 0, and equals it
    assert kinds == [runtime.ADT, runtime.ADT, runtime.Shape, dict]
    assert [value.tag for value in loaded.anything["containers"][:2]] == [0, 4]


def test_json_keeps_tensors_errors_and_sharing() -> None:
    tensor = runtime.tensor(np.arange(6, dtype="float32").reshape(2, 3))
    shared = Point(1.0, tags=[])
    root = Point(2.0, tags=[], anything=[shared, shared, tensor, tensor, ValueError("no")])
    text = runtime.save_json(root)
    assert runtime.save_json(runtime.load_json(text)) == text
    first, second, *tensors, error = runtime.load_json(text).anything  # type: ignore[attr-defined]
    assert first == second
    assert isinstance(error, ValueError)
    np.testing.assert_array_equal(tensors[0].numpy(), tensor.numpy())
    assert len(json.loads(text)["arrays"]) == 1


def test_objects_and_nodes_share_one_json_and_one_equality() -> None:
    point, var = Point(1.0, tags=[]), relay.var("x", shape=(2,))
    text = ekiden.save_json([point, var])
    loaded_point, loaded_var = ekiden.load_json(text)  # type: ignore[misc]
    assert (loaded_point.x, loaded_var.name_hint) == (1.0, "x")
    constant = relay.const(1.0)
    assert ekiden.structural_equal([point, constant], [Point(1.0, tags=[]), relay.const(1.0)])
    assert not ekiden.structural_equal(point, Point(2.0, tags=[]))
    assert ekiden.structural_hash(point) == ekiden.structural_hash(loaded_point)


def test_json_refuses_unsupported_values() -> None:
    cyclic = Point(1.0, tags=[])
    cyclic.anything = [cyclic]
    with pytest.raises(ValueError, match="save_json: an object of Point contains itself"):
        runtime.save_json(cyclic)
    cyclic.anything = None
    function = runtime.convert(lambda: None)
    with pytest.raises(TypeError, match=r"objects of ffi\.Function have no fields"):
        runtime.save_json(function)
    with pytest.raises(TypeError, match="cannot save a complex"):
        runtime.save_json(1j)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ekiden":"9","root":1,"nodes":[],"arrays":[]}',
        '{"ekiden":"1","root":{"node":0},"nodes":[],"arrays":[]}',
        '{"ekiden":"1","root":1,"nodes":[["no.Such",{}]],"arrays":[]}',
        '{"ekiden":"1","root":1,"nodes":[["test.Point",{"x":"text"}]],"arrays":[]}',
        '{"ekiden":"1","root":1,"nodes":[["test.Point",{}]],"arrays":[]}',
        '{"ekiden":"1","root":{"tensor":0},"nodes":[],"arrays":[["int8",[3],"AAA="]]}',
        '{"ekiden":"1","root":{"what":0},"nodes":[],"arrays":[]}',
    ],
)
def test_malformed_json_is_refused(text: str) -> None:
    with pytest.raises(LoadError):
        runtime.load_json(text)


def test_long_object_chains_are_supported() -> None:
    head = None
    for i in range(20_000):
        head = runtime.make_node("kinds.Named", value=i, name="n", next=head)
    text = runtime.save_json(head)
    loaded: Any = runtime.load_json(text)
    assert runtime.structural_equal(head, loaded)
    assert "next=kinds.Named(...)" in repr(head)
    assert len(repr(head)) < 1000
    count = 0
    while loaded is not None:
        loaded, count = loaded.next, count + 1
    assert count == 20_000


def test_objects_can_be_pickled_and_copied() -> None:
    point = Point(1.0, tags=["t"], anything=runtime.tensor(np.arange(3)))
    for twin in (pickle.loads(pickle.dumps(point)), copy.deepcopy(point)):
        assert twin != point
        assert runtime.structural_equal(twin, point)


def test_weak_references() -> None:
    point = Point(1.0, tags=[])
    weak, handle = runtime.WeakRef(point), weakref.ref(point)
    assert weak() == point
    keeper = Point(2.0, tags=[], anything=point)
    del point
    gc.collect()
    assert handle() is None, "the handle has died"
    assert weak().x == 1.0, "the object lives in another"  # type: ignore[union-attr]
    keeper.anything = None
    assert weak() is None


def test_handles_of_one_object_are_equal() -> None:
    inside = Point(1.0, tags=[])
    outside = Point(2.0, tags=[], anything=inside)
    assert outside.anything == inside
    assert outside.anything.same_as(inside)
    assert {outside.anything, inside} == {inside}


def test_register_object_checks_the_class() -> None:
    with pytest.raises(TypeError, match="register_object: expected a subclass of Object"):
        runtime.register_object("test.Wrong")(int)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="made by the runtime"):
        runtime.Object()


def test_uninitialized_module_has_a_repr() -> None:
    assert repr(runtime.Module.__new__(runtime.Module)) == "<Module, not initialised>"
