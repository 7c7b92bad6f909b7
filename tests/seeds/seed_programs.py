"""What becomes of each piece of code in the seed documents, by its digest: how it runs, or why it
cannot.

A program of Python runs as it stands, with its import changed; `given` supplies what it leaves
open, `changes` has what is replaced and why, `check` sees its names and what it printed. A program
of C++ is compiled with the others into one library, with lines of ours before and after it. What
is excused stands on docs/seeds.md with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import ekiden as tvm
from ekiden import relay, te, tir
from ekiden.runtime import Module, PackedFunc
from ekiden.script import tir as T

Names = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Python:
    """A program that runs here."""

    what: str
    check: Callable[[Names, str], None]
    given: Callable[[], Names] = dict
    """The names that it uses and does not make; runs in the folder where it will run."""
    changes: tuple[tuple[str, str, str], ...] = ()
    """What stands there, what takes its place, and why."""
    needs: str = ""
    """The fixture that must be there."""


@dataclass(frozen=True, slots=True)
class Cpp:
    """A program of C++; what it registers is called by the programs of Python beside it."""

    what: str
    before: str = ""
    after: str = ""
    file: str = ""
    """The header that it is, for others to include; else it is compiled."""


@dataclass(frozen=True, slots=True)
class Excused:
    """What is no program."""

    what: str
    reason: str


IMPORTS = (
    ("import tvm\n", "import ekiden as tvm\n"),
    ("from tvm", "from ekiden"),
    ("<tvm/runtime/packed_func.h>", "<ekiden/tvm.hpp>"),
    ("<tvm/runtime/object.h>", "<ekiden/tvm.hpp>"),
    ("<tvm/runtime/registry.h>", "<ekiden/tvm.hpp>"),
)
"""The imports that are changed, in every program."""
TVM = {"tvm": tvm}


# What programs of Python are given, and what they must have done ----------------------------------


def _addone() -> Names:
    """An operator in a library, and the array that the program calls it with under another name
    than it has made it."""

    @T.prim_func
    def addone(data: T.Buffer((3,), "int64")) -> None:  # type: ignore[valid-type]
        for i in T.thread_binding(3, thread="threadIdx.x"):
            data[i] = data[i] + T.int64(1)

    tvm.build(addone, "cuda").export_library("compiled_artifact.so")
    return {"a": tvm.nd.array([1, 2, 3], tvm.cuda(0))}


def _added(names: Names, printed: str) -> None:
    assert printed == "[2 3 4]\n"
    assert names["arr"].numpy().tolist() == [1, 2, 3]
    assert names["arr"].device == names["a"].device == tvm.cuda(0)


def _network() -> Names:
    """A residual block and a classifier, small so that they compile fast, under the name that the
    program asks for."""
    x = relay.var("x", shape=(1, 4, 6, 6))
    weights = {"w0": (4, 4, 3, 3), "w1": (4, 4, 3, 3), "w2": (10, 4)}
    w0, w1, w2 = (relay.var(name, shape=shape) for name, shape in weights.items())
    inner = relay.nn.relu(relay.nn.conv2d(x, w0, padding=(1, 1)))
    block = relay.nn.relu(relay.nn.conv2d(inner, w1, padding=(1, 1)) + x)
    result = relay.nn.dense(relay.nn.batch_flatten(relay.nn.global_avg_pool2d(block)), w2)
    module = tvm.IRModule.from_expr(relay.Function([x, w0, w1, w2], result))
    random = np.random.default_rng(0)
    params = {n: random.standard_normal(s).astype("float32") for n, s in weights.items()}
    image = random.random((1, 4, 6, 6), dtype=np.float32)
    relay.build(module, "cuda", params=params, mod_name="resnet18").export_library("resnet18.so")
    expected = relay.create_executor("debug", module).evaluate()(image, **params).numpy()
    return {**TVM, "get_input_data": lambda: tvm.nd.array(image), "expected": expected}


def _classified(names: Names, printed: str) -> None:
    np.testing.assert_allclose(names["result"], names["expected"], rtol=1e-4, atol=1e-6)


def _fields(names: Names, printed: str) -> None:
    y, x = names["y"], names["x"]
    assert type(y) is tir.Add and y.b is x and y.dtype == "int32"
    back = tvm.load_json(tvm.save_json(y))
    assert tvm.structural_equal(back, y, map_free_vars=True)


def _ten_steps() -> Names:
    """A loop of ten turns, lowered inside of the context and outside."""
    a = te.placeholder((10,), name="a")
    func = te.create_prim_func([a, te.compute((10,), lambda i: a[i] + 1.0, name="b")])
    return {**TVM, "lowered": partial(tvm.lower, func)}


def _unrolled(names: Names, printed: str) -> None:
    assert "for " not in names["inside"].script()
    assert "for " in names["lowered"]().script()


def _hello(names: Names, printed: str) -> None:
    assert printed == "hello world\n" and isinstance(names["f"], PackedFunc)


def _relay_module() -> Names:
    x = relay.var("x", shape=(2, 3))
    return {**TVM, "given": tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))}


def _typed(names: Names, printed: str) -> None:
    assert names["mod"]["main"].body.checked_type == relay.TensorType((2, 3))
    registered = tvm.get_global_func("relay._transform.InferType")
    assert isinstance(registered, PackedFunc)
    assert tvm.structural_equal(registered()(names["given"]), names["mod"])


def _loop_program() -> Names:
    a = te.placeholder((4,), name="a")
    func = te.create_prim_func([a, te.compute((4,), lambda i: a[i] * 2.0, name="b")])
    return {**TVM, "given": (func.with_attr("global_symbol", "main"), "llvm"), **_tensors()}


def _tensors() -> Names:
    return {"input_tensor": tvm.nd.array(np.ones(4, "float32")), "output": tvm.nd.empty((4,))}


def _doubled(names: Names, printed: str) -> None:
    assert isinstance(names["lib"], Module) and isinstance(names["f"], PackedFunc)
    assert names["output"].numpy().tolist() == [2.0] * 4


def _of_expr(names: Names, printed: str) -> None:
    assert printed == "MyExpr.value = 42\n"
    assert names["e"].value == 42 and names["e"].type_key == "myns.MyExpr"


def _prints(text: str) -> Callable[[Names, str], None]:
    def check(names: Names, printed: str) -> None:
        assert printed == text

    return check


# What programs of C++ leave open ------------------------------------------------------------------

_GLOBAL = "#include <ekiden/tvm.hpp>\nusing namespace tvm::runtime;\n"
_VISIT = """
struct CountMembers : AttrVisitor {
  int count = 0;
  void Visit(const char*, double*) override { count++; }
  void Visit(const char*, int64_t*) override { count++; }
  void Visit(const char*, uint64_t*) override { count++; }
  void Visit(const char*, int*) override { count++; }
  void Visit(const char*, bool*) override { count++; }
  void Visit(const char*, std::string*) override { count++; }
  void Visit(const char*, void**) override { count++; }
  void Visit(const char*, Type*) override { count++; }
  void Visit(const char*, ObjectRef*) override { count++; }
};
struct OneMember : BaseAttrsNode {
  int64_t member = 0;
  void VisitAttrs(AttrVisitor* v) override { v->Visit("member", &member); }
};
TVM_REGISTER_GLOBAL("seeds.visit").set_body_typed([]() {
  CountMembers visitor;
  BaseAttrsNode().VisitAttrs(&visitor);
  OneMember().VisitAttrs(&visitor);
  return visitor.count;
});
}  // namespace own
"""
_TENSOR_NODE = """
namespace tensors {
using tvm::Array;
using tvm::Type;
class Expr : public ObjectRef { public: using ObjectRef::ObjectRef; };
class Operation : public ObjectRef { public: using ObjectRef::ObjectRef; };
"""
_TENSOR_KEY = """
class KeyedTensorNode : public TensorNode {
 public:
  static constexpr const char* _type_key = "seeds.Tensor";
  TVM_DECLARE_FINAL_OBJECT_INFO(KeyedTensorNode, Object);
};
TVM_REGISTER_OBJECT_TYPE(KeyedTensorNode);
}  // namespace tensors
"""
_MAKE_EXPR = """
TVM_REGISTER_GLOBAL("myns.MyExpr").set_body_typed([](int value) {
  auto node = tvm::make_object<tvm::myns::MyExprNode>();
  node->value = value;
  return tvm::myns::MyExpr(node);
});
"""
_CALL = """
TVM_REGISTER_GLOBAL("seeds.call_packed").set_body_typed([]() { CallPacked(); });
"""

_SKETCH = "a drawing of a data structure with parts left out, no program"

PROGRAMS: Mapping[str, Python | Cpp | Excused] = {
    # 000 and 001: the virtual machine
    "4c7d719a": Excused("the state of a virtual machine", _SKETCH),
    "b8129fd8": Excused("the cell of a value", _SKETCH),
    "fd469bc5": Excused("a reference to that cell", _SKETCH),
    "51b0aa67": Excused(
        "what makes tensors, data and closures",
        "declarations without bodies in a proposal; tensors, data and closures are tried by "
        "programs of our own",
    ),
    "a5c91bdf": Excused("the state of a stack machine", _SKETCH),
    # 002 and 004: functions and objects of C++, called from Python
    "5a0e869e": Cpp("a packed function, and a call of it", _GLOBAL, _CALL),
    "b9785d30": Cpp("its registration"),
    "dcbbec4b": Python("a call from Python", _prints("3\n")),
    "2da1f349": Cpp("a function that is given a function"),
    "4d5dd01f": Python("a call with a function of Python", _hello),
    "23d46a48": Cpp("a visitor of members", "namespace own {\nusing tvm::Type;\n", _VISIT),
    "5c684496": Cpp("a node with members", _TENSOR_NODE, _TENSOR_KEY),
    "701c84d9": Python("a member of a node in Python", _prints("x\n")),
    # 003: the design
    "ded57e0e": Python("an operator from a library", _added, _addone, needs="fake_cuda"),
    "932a7dd8": Python("a network from a library", _classified, _network, needs="fake_cuda"),
    "ac1053f5": Python("fields of a node", _fields, lambda: dict(TVM)),
    "cb131b5a": Python(
        "an option of a pass",
        _unrolled,
        _ten_steps,
        (("# code affected by the pass context", "inside = lowered()", "a comment is no body"),),
    ),
    # 004: notes of its translator, and a type from C++ to Python
    "935c6235": Python(
        "a pass",
        _typed,
        _relay_module,
        (("mod = ...", "mod = given", "the module is left open"),),
    ),
    "cdc61257": Python(
        "a compiled function",
        _doubled,
        _loop_program,
        (
            ("tvm.build(...)", "tvm.build(*given)", "the program is left open"),
            ("f(input_tensor)", "f(input_tensor, output)", "a result is written to a tensor"),
        ),
    ),
    "2a560419": Cpp("a type", file="my_expr.h"),
    "ee69b600": Cpp("its registration", after=_MAKE_EXPR),
    "32d3963d": Cpp("a function of it"),
    "53440f2e": Python("the type in Python", _of_expr, lambda: dict(TVM)),
}


@dataclass(slots=True)
class Library:
    """The one translation unit of all programs of C++, and the headers beside it."""

    text: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def add(self, row: Cpp, text: str, name: str) -> None:
        """Add a program, under a name for messages."""
        for old, new in IMPORTS:
            text = text.replace(old, new)
        if row.file:
            self.files[row.file] = text
        else:
            self.text += f'{row.before}\n#line 1 "{name}"\n{text}\n{row.after}\n'
