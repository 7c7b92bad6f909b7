"""Programs that TVM saved as JSON: documents of its form, written here node by node."""

import base64
import json

import numpy as np
import pytest

from ekiden import IRModule, ir, relay, structural_equal, tir
from ekiden.ir.ndarray_format import array_to_bytes
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import LoadError

pytestmark = pytest.mark.quick
WEIGHT = np.arange(8, dtype=np.float32).reshape(4, 2, 1, 1)


class Document:
    """A document, whose nodes are added one by one; each is known by its number, as a text."""

    def __init__(self, version: str = "0.16.0") -> None:
        self.nodes: list[dict[str, object]] = [{"type_key": ""}]
        self.arrays: list[str] = []
        self.version = version

    def __call__(self, type_key: str, /, **fields: object) -> str:
        attrs = {name: str(value) for name, value in fields.items()}
        return self.add({"type_key": type_key, "attrs": attrs})

    def add(self, row: dict[str, object]) -> str:
        self.nodes.append(row)
        return str(len(self.nodes) - 1)

    def text(self, text: str) -> str:
        return self.add({"type_key": "runtime.String", "repr_str": text})

    def list(self, *items: str) -> str:
        return self.add({"type_key": "Array", "data": [int(i) for i in items]})

    def map(self, *items: str) -> str:
        return self.add({"type_key": "Map", "data": [int(i) for i in items]})

    def int(self, value: object, dtype: str = "int32") -> str:
        return self("IntImm", dtype=dtype, value=value, span=0)

    def ints(self, *values: object) -> str:
        return self.list(*map(self.int, values))

    def tensor(self, shape: str) -> str:
        return self("relay.TensorType", dtype="float32", shape=shape, span=0)

    def var(self, name: str, kind: str = "0") -> str:
        vid = self("relay.Id", name_hint=self.text(name))
        return self("relay.Var", _checked_type_=0, span=0, type_annotation=kind, vid=vid)

    def call(self, op: str, *args: str, attrs: str = "0") -> str:
        result = self.add({"type_key": "Op", "repr_str": op})
        argument = self.list(*args)
        return self("relay.Call", op=result, args=argument, attrs=attrs, type_args=0, span=0)

    def constant(self, array: np.ndarray) -> str:  # type: ignore[type-arg]
        self.arrays.append(base64.b64encode(array_to_bytes(array)).decode())
        return self("relay.Constant", data=len(self.arrays) - 1, span=0, _checked_type_=0)

    def load(self, root: str) -> object:
        document = {
            "root": int(root), "nodes": self.nodes, "b64ndarrays": self.arrays,
            "attrs": {"tvm_version": self.version},
        }  # fmt: skip
        return ir.load_json(json.dumps(document))


def conv2d(doc: Document, **more: object) -> str:
    """The attributes of one, as TVM has them: numbers, words, and lists that are nodes."""
    return doc(
        "relay.attrs.Conv2DAttrs",
        strides=doc.ints(1, 1), padding=doc.ints(0, 0, 0, 0), dilation=doc.ints(1, 1), groups=1,
        channels=doc.int(4), kernel_size=doc.ints(1, 1), data_layout=doc.text("NCHW"),
        kernel_layout=doc.text("OIHW"), out_layout=doc.text(""), out_dtype="",
        auto_scheduler_rewritten_layout=doc.text(""), meta_schedule_original_shape=doc.list(),
        **more,
    )  # fmt: skip


def module(doc: Document, **more: object) -> str:
    size = doc("tir.SizeVar", name=doc.text("n"), dtype="int32", type_annotation=0, span=0)
    shape = doc.list(size, *map(doc.int, (2, 5, 5)))
    x = doc.var("x", doc.tensor(shape))
    y = doc.call("nn.conv2d", x, doc.constant(WEIGHT), attrs=conv2d(doc, **more))
    whole = doc("relay.Tuple", fields=doc.list(y, y), span=0, virtual_device_=0)
    first = doc("relay.TupleGetItem", tuple_value=whole, index=1, span=0)
    taken = doc("relay.attrs.TakeAttrs", axis=doc.int(0), batch_dims=doc.int(0), mode="clip")
    body = doc.call("take", first, doc.constant(np.array(0, np.int64)), attrs=taken)
    message = doc("DictAttrs", __dict__=doc.map(doc.text("Inline"), doc.int(1)))
    function = doc(
        "relay.Function", params=doc.list(x), body=body, ret_type=0, type_params=doc.list(),
        attrs=message, span=0, virtual_device_=0, _checked_type_=0,
    )  # fmt: skip
    name = doc("GlobalVar", name_hint=doc.text("main"), span=0, struct_info_=0)
    return doc("IRModule", functions=doc.map(name, function), type_definitions=0, attrs=0)


def test_module_is_the_one_of_the_same_text() -> None:
    doc = Document()
    loaded = doc.load(module(doc))
    assert isinstance(loaded, IRModule)
    assert loaded["main"].attrs == {"Inline": 1} and loaded["main"].virtual_device_ is None
    n = relay.SizeVar("n")
    x = relay.var("x", shape=(n, 2, 5, 5))
    y = relay.nn.conv2d(x, relay.const(WEIGHT), channels=4, kernel_size=(1, 1))
    index = relay.const(np.array(0, np.int64))
    body = relay.take(relay.TupleGetItem(relay.Tuple([y, y]), 1), index, axis=0, mode="clip")
    expected = IRModule.from_expr(relay.Function([x], body).with_attr("Inline", 1))
    ir.assert_structural_equal(InferType()(loaded), InferType()(expected))
    assert loaded["main"].params[0].type_annotation.shape[1].dtype == "int64"


def test_old_operator_names_are_mapped() -> None:
    doc = Document("0.6.0")
    named = doc("Variable", dtype="int32", name="a")
    kind = doc.load(doc("relay.TypeVar", kind=0, span=0, var=named))
    assert isinstance(kind, relay.TypeVar) and kind.name_hint == "a"
    op = doc.load(doc.add({"type_key": "relay.Op", "global_key": "nn.relu"}))
    assert op is relay.op.get("nn.relu")
    assert doc.load(doc("relay.GlobalVar", name_hint="x", span=0)).name_hint == "x"


@pytest.mark.parametrize("version", ["0.15.dev0", "0.16.0"])
def test_loop_programs_keep_their_dtypes(version: str) -> None:
    doc = Document(version)
    lanes = "4" if version < "0.16" else doc.int(4)
    pointer = doc("PointerType", element_type=0, storage_scope=doc.text("shared"))
    data = doc("tir.Var", dtype="handle", name=doc.text("b"), type_annotation=pointer, span=0)
    buffer = doc(
        "tir.Buffer", data=data, dtype="int32", shape=doc.ints(50), strides=doc.list(), span=0,
        elem_offset=doc.int(0), name=doc.text("b"), data_alignment=64, offset_factor=1,
        buffer_type=1, axis_separators=doc.list(),
    )  # fmt: skip
    at = doc("tir.Ramp", base=doc.int(3), stride=doc.int(1), lanes=lanes, dtype="int32x4", span=0)
    value = doc("tir.Broadcast", value=doc.int(7), lanes=lanes, dtype="int32x4", span=0)
    store = doc.load(doc("tir.BufferStore", buffer=buffer, indices=doc.list(at), value=value))
    assert isinstance(store, tir.BufferStore) and store.buffer.scope == "shared"
    assert store.value.dtype == "int32x4" and store.indices[0].base.value == 3


def test_unsupported_tvm_nodes_are_named() -> None:
    doc = Document()
    with pytest.raises(LoadError, match=r"Conv2DAttrs: the field 'tricks' has no meaning here"):
        doc.load(module(doc, tricks=doc.text("fast")))
    with pytest.raises(LoadError, match=r"a node 'relax\.Function' has no meaning here"):
        doc.load(doc("relax.Function", body=0))
    own = doc("relay.Tuple", fields=len(doc.nodes) + 1, span=0)
    doc.list(own)
    with pytest.raises(LoadError, match=r"node \d+ is a part of itself"):
        doc.load(own)
    with pytest.raises(LoadError, match="not a saved node: IndexError"):
        doc.load(doc("relay.Let", var=900, value=0, body=0))


@pytest.mark.slow
def test_long_program_is_read_without_recursion() -> None:
    doc = Document()
    at = doc.var("x")
    for _ in range(3000):
        at = doc.call("nn.relu", at)
    loaded = doc.load(at)
    assert isinstance(loaded, relay.Call) and structural_equal(loaded, loaded)
