"""The VM compiler: from A-normal form with explicit memory to bytecode.

Each variable gets a register of its own. Kernels and shape functions are compiled first, so that
their numbers are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ekiden.backend.external import build_external, is_external
from ekiden.backend.kernels.build import build_kernels
from ekiden.backend.kernels.lower import Constraint, shape_function
from ekiden.backend.vm.dims import Dims, dims_of, is_static, sources, values
from ekiden.backend.vm.encode import Instruction, Operand, make
from ekiden.backend.vm.write import VMFunction, write_executable
from ekiden.codegen.parallel import Progress
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, Op
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.relay.expr import (
    Call,
    Clause,
    Constant,
    Constructor,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.vm import ReshapeTensorAttrs
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

HOST = 0
"""The device index of the host."""


@dataclass(slots=True)
class _Program:
    """What all functions of an executable share: numbers of functions and primitives, the table of
    constants.
    """

    functions: dict[str, int]
    closures: set[str]
    primitives: dict[Function, int] = field(default_factory=dict)
    shape_functions: dict[str, int] = field(default_factory=dict)
    constants: list[Array] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)

    def constant(self, data: Array) -> int:
        """The number of a constant: one for each array, and one for each shape."""
        small = data.size <= 16
        key: object = (str(data.dtype), data.shape, data.tobytes()) if small else id(data)
        if key not in self._numbers:
            self._numbers[key] = len(self.constants)
            self.constants.append(data)
        return self._numbers[key]


def _flatten_closure(function: Function) -> Function:
    """fn (captured) { fn (params) { body } } marked Closure -> fn (captured, params) { body }"""
    inner = function.body
    if not function.attr("Closure"):
        return function
    assert isinstance(inner, Function)
    return inner.with_fields(params=(*function.params, *inner.params))


class _FunctionCompiler:
    """Emits the instructions of one function."""

    def __init__(self, program: _Program, name: str, function: Function, dims: Dims) -> None:
        self.program = program
        self.name = name
        self.function = function
        self.dims = dims
        self.code: list[Instruction] = []
        self.registers: dict[RelayExpr, int] = {p: i for i, p in enumerate(function.params)}
        self.count = len(function.params)
        self.dims_register = -1

    def compile(self) -> VMFunction:
        """The whole function."""
        if self.dims.exprs:
            self._compute_dims()
        self._emit("Ret", src=self._chain(self.function.body))
        params = tuple(p.name_hint for p in self.function.params)
        return VMFunction(self.name, params, self.count, tuple(self.code))

    def _emit(self, name: str, **operands: Operand | str) -> int:
        self.code.append(make(name, **operands))
        return len(self.code) - 1

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _compute_dims(self) -> None:
        size = self._new()
        self._emit("LoadConsti", dst=size, value=8 * len(self.dims.exprs))
        storage, self.dims_register = self._new(), self._new()
        self._emit("AllocStorage", dst=storage, size=size, size_index=0, alignment=64, device=HOST)
        shape = (len(self.dims.exprs),)
        self._emit(
            "AllocTensor",
            dst=self.dims_register,
            storage=storage,
            offset=0,
            dtype="int64",
            shape=shape,
        )
        found = sources(self.function, self.dims).tensors
        args = (*(self._part(each.path) for each in found), self.dims_register)
        index = self.program.shape_functions[self.name]
        self._emit("InvokePacked", packed_index=index, output_size=1, args=args)

    def _part(self, path: tuple[int, ...]) -> int:
        """The register of a parameter, or of a field inside it."""
        register, *fields = path
        for index in fields:
            register = self._into("GetField", object=register, index=index)
        return register

    def _chain(self, body: RelayExpr) -> int:
        """The bindings of a let-chain, then the register of its result."""
        while isinstance(body, Let):
            self.registers[body.var] = self._value(body.value)
            body = body.body
        return self._value(body)

    def _value(self, value: RelayExpr) -> int:
        """Emit what computes a value; the register that holds it."""
        match value:
            case Var():
                return self._alias(value)
            case Constant(data=data):
                return self._load_constant(data)
            case Tuple(fields=fields):
                return self._adt(0, fields)
            case TupleGetItem(tuple_value=of, index=index):
                return self._into("GetField", object=self._atom(of), index=index)
            case GlobalVar(name_hint=name):
                return self._into("AllocClosure", func=self.program.functions[name], free=())
            case Call():
                return self._call(value)
            case If():
                return self._if(value)
            case Match():
                return self._match(value)
            case RefCreate() | RefRead() | RefWrite():
                raise CompileError(f"{type(value).__name__}: the virtual machine has no references")
            case _:
                raise InternalError(
                    f"VM compiler: a {type(value).__name__} is not in A-normal form"
                )

    def _into(self, name: str, **operands: Operand | str) -> int:
        target = self._new()
        self._emit(name, dst=target, **operands)
        return target

    def _alias(self, variable: Var) -> int:
        if variable not in self.registers:
            raise InternalError(
                f"VM compiler: variable %{variable.name_hint} has no register in @{self.name}"
            )
        return self._into("Move", src=self.registers[variable])

    def _atom(self, expr: RelayExpr) -> int:
        """The register of an argument; a variable's own, without a copy."""
        return self.registers[expr] if expr in self.registers else self._value(expr)

    def _atoms(self, exprs: tuple[RelayExpr, ...]) -> tuple[int, ...]:
        return tuple(map(self._atom, exprs))

    def _load_constant(self, data: Array) -> int:
        return self._into("LoadConst", const_index=self.program.constant(data))

    def _load_int(self, value: int) -> int:
        return self._into("LoadConsti", value=value)

    def _adt(self, tag: int, fields: tuple[RelayExpr, ...]) -> int:
        return self._into("AllocADT", tag=tag, fields=self._atoms(fields))

    def _call(self, call: Call) -> int:
        match call.op:
            case Op(name=name):
                return self._operator(name, call)
            case GlobalVar(name_hint=name):
                kind, key = (
                    ("AllocClosure", "free")
                    if name in self.program.closures
                    else ("Invoke", "args")
                )
                return self._into(
                    kind, func=self.program.functions[name], **{key: self._atoms(call.args)}
                )
            case Constructor(tag=tag):
                return self._adt(tag, call.args)
            case op:
                return self._into(
                    "InvokeClosure", closure=self._atom(op), args=self._atoms(call.args)
                )

    def _operator(self, name: str, call: Call) -> int:
        match name, call.attrs:
            case "memory.alloc_storage", AllocStorageAttrs(size=size, alignment=alignment):
                register, index = self._integer(size)
                assert isinstance(call.attrs, AllocStorageAttrs)
                return self._into(
                    "AllocArena" if call.attrs.arena else "AllocStorage",
                    size=register,
                    size_index=index,
                    alignment=alignment,
                    device=HOST,
                )
            case "memory.alloc_tensor", AllocTensorAttrs():
                return self._alloc_tensor(self._atom(call.args[0]), call.attrs)
            case "vm.reshape_tensor", ReshapeTensorAttrs(shape=shape):
                register, index = self._shape(shape)
                data = self._atom(call.args[0])
                return self._into(
                    "ReshapeTensor", tensor=data, shape=register, shape_index=index, ndim=len(shape)
                )
            case "vm.shape_of" | "shape_of", _:
                return self._into("ShapeOf", tensor=self._atom(call.args[0]))
            case "vm.invoke_tvm_op", _:
                return self._invoke_kernel(call)
            case "memory.kill", _:
                self._emit("KillRegister", dst=self._atom(call.args[0]))
                return -1
            case _:
                where = f" ({call.span})" if call.span else ""
                raise CompileError(
                    f"{name}{where}: the operator has neither a kernel nor an instruction"
                )

    def _integer(self, value: PrimExpr) -> tuple[int, int]:
        """(register, element) of an integer."""
        if isinstance(value, IntImm):
            return self._load_int(value.value), 0
        return self.dims_register, self.dims.place((value,))

    def _shape(self, shape: tuple[PrimExpr, ...]) -> tuple[int, int]:
        """(register, first element) of a shape."""
        if is_static(shape):
            return self._load_constant(np.array(values(shape), np.int64)), 0
        return self.dims_register, self.dims.place(shape)

    def _alloc_tensor(self, storage: int, attrs: AllocTensorAttrs) -> int:
        if is_static((attrs.offset, *attrs.shape)):
            offset = values((attrs.offset,))[0]
            return self._into(
                "AllocTensor",
                storage=storage,
                offset=offset,
                dtype=attrs.dtype,
                shape=values(attrs.shape),
            )
        return self._into(
            "AllocTensorReg",
            storage=storage,
            offset=self.dims_register,
            offset_index=self.dims.place((attrs.offset,)),
            shape=self.dims_register,
            shape_index=self.dims.place(attrs.shape),
            ndim=len(attrs.shape),
            dtype=attrs.dtype,
        )

    def _invoke_kernel(self, call: Call) -> int:
        function, inputs, outputs = call.args
        assert (
            isinstance(function, Function)
            and isinstance(inputs, Tuple)
            and isinstance(outputs, Tuple)
        )
        args = self._atoms(inputs.fields) + self._atoms(outputs.fields)
        index = self.program.primitives[function]
        self._emit("InvokePacked", packed_index=index, output_size=len(outputs.fields), args=args)
        return -1

    def _patch(self, at: int, name: str, **offsets: int) -> None:
        """Fill in the jump offsets of an instruction that was emitted before its target was
        known.
        """
        old = self.code[at]
        if name == "If":
            self.code[at] = make(name, test=old["test"], target=old["target"], **offsets)
        else:
            self.code[at] = make(name, **offsets)

    def _if(self, expr: If) -> int:
        test, result = self._atom(expr.cond), self._new()
        one = self._load_int(1)
        branch = self._emit("If", test=test, target=one, true_offset=1, false_offset=1)
        self._emit("Move", dst=result, src=self._chain(expr.true_branch))
        skip = self._emit("Goto", offset=1)
        self._patch(branch, "If", true_offset=1, false_offset=len(self.code) - branch)
        self._emit("Move", dst=result, src=self._chain(expr.false_branch))
        self._patch(skip, "Goto", offset=len(self.code) - skip)
        return result

    def _match(self, expr: Match) -> int:
        data, result = self._atom(expr.data), self._new()
        done: list[int] = []
        for clause in expr.clauses:
            failed = self._pattern(clause.lhs, data)
            self._clause(clause, result)
            done.append(self._emit("Goto", offset=1))
            for at in failed:
                self._patch(at, "If", true_offset=1, false_offset=len(self.code) - at)
        self._emit("Fatal")
        for at in done:
            self._patch(at, "Goto", offset=len(self.code) - at)
        return result

    def _clause(self, clause: Clause, result: int) -> None:
        self._emit("Move", dst=result, src=self._chain(clause.rhs))

    def _pattern(self, pattern: Pattern, value: int) -> list[int]:
        """Bind the variables of a pattern; the positions of the tests that jump when it does not
        fit.
        """
        failed: list[int] = []
        work = [(pattern, value)]
        while work:
            at, register = work.pop(0)
            match at:
                case PatternVar(var=variable):
                    self.registers[variable] = register
                case PatternConstructor(constructor=constructor, patterns=patterns):
                    failed.append(self._test_tag(register, constructor.tag))
                    work.extend((p, self._field(register, i)) for i, p in enumerate(patterns))
                case PatternTuple(patterns=patterns):
                    work.extend((p, self._field(register, i)) for i, p in enumerate(patterns))
        return failed

    def _field(self, register: int, index: int) -> int:
        return self._into("GetField", object=register, index=index)

    def _test_tag(self, register: int, tag: int) -> int:
        found, wanted = self._into("GetTag", object=register), self._load_int(tag)
        return self._emit("If", test=found, target=wanted, true_offset=1, false_offset=1)


def primitive_functions(module: IRModule) -> list[Function]:
    """The fused functions that a module with explicit memory calls, each once, in order."""
    found: dict[Function, None] = {}
    for function in module.functions.values():
        assert isinstance(function, Function)
        for expr in evaluation_order(function.body):
            if (
                isinstance(expr, Call)
                and isinstance(expr.op, Op)
                and expr.op.name == "vm.invoke_tvm_op"
            ):
                kernel = expr.args[0]
                assert isinstance(kernel, Function)
                found[kernel] = None
    return list(found)


def _shape_kernel(name: str, function: Function, dims: Dims) -> PrimFunc:
    found = sources(function, dims)
    kinds = [each.kind for each in found.tensors]
    return shape_function(kinds, found.exprs, found.constraints, f"shape_func_{name}")


def _constraints(module: IRModule, name: str) -> Sequence[Constraint]:
    """What a frontend says every run of `main` must meet."""
    found = module.attrs.get("constraints", ()) if name == "main" else ()
    assert isinstance(found, Sequence)
    return found


def compile_module(
    module: IRModule, target: Target, metadata: dict[str, object], progress: Progress | None = None
) -> bytes:
    """The bytes of the executable of a module that the VM pipeline has prepared.

    Raises CompileError for what the virtual machine cannot run, naming the node of the model.
    """
    functions = {
        g.name_hint: _flatten_closure(f)
        for g, f in module.functions.items()
        if isinstance(f, Function)
    }
    closures = {
        g.name_hint
        for g, f in module.functions.items()
        if isinstance(f, Function) and f.attr("Closure")
    }
    dims = {name: dims_of(f.body, _constraints(module, name)) for name, f in functions.items()}
    shapes = {n: _shape_kernel(n, f, dims[n]) for n, f in functions.items() if dims[n].exprs}
    fused = primitive_functions(module)
    symbols = {f: build_external(f) for f in fused if is_external(f)}
    fused = [f for f in fused if f not in symbols]
    kernels = build_kernels(fused, list(shapes.values()), target, progress)
    own = dict(zip(fused, kernels.names, strict=True))
    called = [*kernels.names, *(s.name for s in shapes.values()), *symbols.values()]
    names = list(dict.fromkeys(called))
    program = _Program({n: i for i, n in enumerate(functions)}, closures)
    program.primitives = {f: names.index(n) for f, n in {**own, **symbols}.items()}
    program.shape_functions = {n: names.index(s.name) for n, s in shapes.items()}
    compiled = [_FunctionCompiler(program, n, f, dims[n]).compile() for n, f in functions.items()]
    return write_executable(compiled, program.constants, names, kernels.image, metadata)
