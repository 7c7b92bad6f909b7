"""size="small": artifacts as large as their weights, and the report of inspect."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.cli import main
from ekiden.relay import op
from ekiden.runtime.artifact.container_format import (
    SectionSource,
    assemble_in_memory,
    read_sections,
)
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick
WEIGHT = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    """A 3x3 convolution of 64 channels, which is fastest by Winograd's method."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    infos = [helper.make_tensor_value_info(n, 1, [1, 64, 32, 32]) for n in "xy"]
    weights = [numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph([node], "conv", infos[:1], infos[1:], weights)
    path = tmp_path / "conv.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


X = np.random.default_rng(1).standard_normal((1, 64, 32, 32)).astype(np.float32)


@pytest.mark.slow
def test_small_artifact_leaves_small_weights_and_kernels(convolution: Path) -> None:
    """The transformed weight is made of the model's when the artifact is loaded."""
    fast, small = (ekiden.compile(convolution, size=size) for size in ("", "small"))
    assert fast.weight_bytes[0] == small.weight_bytes[0] == WEIGHT.nbytes
    assert small.stored_weight_bytes < 1.01 * WEIGHT.nbytes < 2 * WEIGHT.nbytes
    assert fast.stored_weight_bytes == fast.weight_bytes[1] == 4 * WEIGHT.nbytes
    assert small.weight_bytes[1] == 5 * WEIGHT.nbytes
    expected = fast(X).numpy()
    np.testing.assert_allclose(small(X).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert [i for i in small.primitive_ops if "winograd_conv2d" in i or "without" in i]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_small_artifacts_are_saved_loaded_and_copied(
    convolution: Path, tmp_path: Path, executor: str
) -> None:
    small = ekiden.compile(convolution, size="small", executor=executor)
    expected = small(X).numpy()
    small.save(tmp_path / "small.eki")
    assert (tmp_path / "small.eki").stat().st_size < 2 * WEIGHT.nbytes
    for again in (ekiden.load(tmp_path / "small.eki"), pickle.loads(pickle.dumps(small))):
        np.testing.assert_array_equal(again(X).numpy(), expected)
        assert again.stored_weight_bytes == small.stored_weight_bytes


def test_small_artifacts_accept_late_bound_weights(convolution: Path, tmp_path: Path) -> None:
    small = ekiden.compile(convolution, size="small")
    expected = small(X).numpy()
    small.move_late_bound_consts(tmp_path / "weights", 1000)
    small.save(tmp_path / "code.eki")
    bare = ekiden.load(tmp_path / "code.eki")
    assert bare.stored_weight_bytes == small.stored_weight_bytes
    bare.load_late_bound_consts(tmp_path / "weights")
    np.testing.assert_array_equal(bare(X).numpy(), expected)


@pytest.mark.slow
def test_small_variants_store_source_weights_once(convolution: Path) -> None:
    """Of what other variants make, this machine's knows nothing."""
    levels = ["x86-64-v4", "x86-64-v3", "x86-64"]
    targets = [f"llvm -mcpu={level}" for level in levels] + ["llvm -mcpu=neoverse-n1"]
    small = ekiden.compile(convolution, targets, size="small")
    assert small.stored_weight_bytes < 1.1 * WEIGHT.nbytes
    expected = ekiden.compile(convolution)(X).numpy()
    np.testing.assert_allclose(small(X).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_derived_constants_may_chain_or_have_no_source() -> None:
    """A chain of constants, each larger than what it is made of, and one that is made of none."""
    x = relay.var("x", shape=(64, 64))
    row = op.broadcast_to(relay.const(np.float32(2)), (64, 64))
    table = op.tile(op.multiply(row, row), (8, 8))
    ramp = op.cast(op.arange(relay.const(4096), dtype="int32"), "float32")
    body = op.maximum(
        op.tile(x, (8, 8)), op.add(table, op.reshape(op.tile(ramp, (64,)), (512, 512)))
    )
    module = relay.IRModule.from_expr(relay.Function([x], body))
    fast, small = (ekiden.compile(module, size=size) for size in ("", "small"))
    assert small.stored_weight_bytes < 20_000 < fast.stored_weight_bytes
    data = np.arange(4096, dtype="float32").reshape(64, 64)
    np.testing.assert_array_equal(small(data).numpy(), fast(data).numpy())


def test_derived_constant_tables_are_validated(convolution: Path) -> None:
    """Damaged behind a right checksum, each is a LoadError; none reads what is not there."""
    data = ekiden.compile(convolution, size="small").raw.to_bytes()
    parts = [(kind, variant, bytes(p)) for kind, variant, p in read_sections(data)]
    table = next(p for kind, _, p in parts if kind is Section.DERIVED)
    words = np.frombuffer(table, "<u4")
    refused = 0
    for at in range(len(words)):
        for value in (0, 1, 2, 3, 7, 2**31 - 1, 2**32 - 1):
            bad = words.copy()
            bad[at] = value
            if bad.tobytes() == table:
                continue
            replaced = {Section.DERIVED: bad.tobytes()}
            result = assemble_in_memory(
                SectionSource(k, lambda _, p=replaced.get(k, p): [p], v)  # noqa: B008
                for k, v, p in parts
            )
            try:
                ekiden.load(bytes(result))
            except ekiden.LoadError:
                refused += 1
            except (TypeError, ValueError) as error:  # a kernel that does not take what it is given
                assert "argument" in str(error)
    assert refused >= 4 * (len(words) - 1)


def test_size_small_on_the_command_line(
    convolution: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.eki"
    assert main(["compile", str(convolution), "-o", str(small), "--size", "small"]) == 0
    assert main(["inspect", str(small)]) == 0
    loaded = ekiden.load(small)
    line = (
        f"Weights: {WEIGHT.nbytes} bytes in the model, {loaded.stored_weight_bytes} in the"
        f" artifact, {loaded.weight_bytes[1]} with what is made of these when it is loaded"
    )
    assert line in capsys.readouterr().out.splitlines()


def test_another_size_is_refused(convolution: Path) -> None:
    with pytest.raises(CompileError) as caught:
        ekiden.compile(convolution, size="tiny")
    assert str(caught.value) == "compile: size 'small' or '' expected, got 'tiny'"
