"""The VM compiler: from A-normal form with explicit memory to bytecode.

Each value gets a register of its own; registers.py makes few of them. Kernels and shape functions
are compiled first, so that their numbers are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ekiden.backend.aot.build import Native, native_code
from ekiden.backend.external import build_external, is_external
from ekiden.backend.kernels.build import build_kernels
from ekiden.backend.kernels.flops import describe_kernel
from ekiden.backend.kernels.lower import Constraint
from ekiden.backend.vm.dims import Plan, Stage, is_static, values
from ekiden.backend.vm.emit import Emitter, Scope, emit_scope
from ekiden.backend.vm.match import Leaf, Path, Test, decision_tree
from ekiden.backend.vm.registers import allocate
from ekiden.backend.vm.stages import arguments, sources, stage_kernel
from ekiden.backend.vm.write import VMFunction, write_executable
from ekiden.codegen.parallel import Progress
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.node import fields_of
from ekiden.ir.op import OPS, Array, Op
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Match,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.vm import ReshapeTensorAttrs
from ekiden.relay.transform.chains import Binding, unchain
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.relay.transform.storage_lifetimes import op_name
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.target import Target

_Parts: TypeAlias = dict[Path, int]
"""Registers of parts of a value."""
_Waiting: TypeAlias = tuple[int, int, _Parts]
"""A node of a decision tree that is not emitted yet, its label, and the parts known there."""

MAX_CASES = 256
"""A tag from here on has no place in a table of jumps."""

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
    shape_functions: dict[Stage, int] = field(default_factory=dict)
    host_functions: dict[str, int] = field(default_factory=dict)
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


class _FunctionCompiler(Emitter):
    """Emits the instructions of one function."""

    def __init__(self, program: _Program, plan: Plan) -> None:
        function = plan.function
        super().__init__(len(function.params))
        self.program = program
        self.plan = plan
        self.name = plan.name
        self.function = function
        self.registers: dict[RelayExpr, int] = {p: i for i, p in enumerate(function.params)}
        self.vectors: dict[Stage, int] = {}
        """Stage -> the register of the vector that it computes."""

    def compile(self) -> VMFunction:
        """The whole function."""
        if self.plan.entry.dims.exprs:
            found = sources(self.function, self.plan.entry.dims).tensors
            held: _Parts = {(i,): i for i in range(len(self.function.params))}
            self._compute(self.plan.entry, [self._part(each.path, held) for each in found])
        emit_scope(self._scope(self.function.body, None))
        params = tuple(p.name_hint for p in self.function.params)
        return VMFunction(self.name, params, *allocate(self.code(), len(params)))

    def _compute(self, stage: Stage, tensors: Sequence[int]) -> None:
        """Compute the vector of a stage from tensors and the vectors before it."""
        length = len(stage.dims.exprs)
        size = self._load_int(8 * length)
        storage = self.into("AllocStorage", size=size, size_index=0, alignment=64, device=HOST)
        vector = self.into("AllocTensor", storage=storage, offset=0, dtype="int64", shape=(length,))
        args = (*tensors, *(self.vectors[s] for s in stage.earlier), vector)
        index = self.program.shape_functions[stage]
        self.emit("InvokePacked", packed_index=index, output_size=1, args=args)
        self.vectors[stage] = vector

    def _compute_later(self, stage: Stage | None) -> None:
        """Compute the vector of a stage after the entry, if there is one and it has a use."""
        if stage is None or not stage.dims.exprs:
            return
        found = arguments(stage)
        tensors = [self._part((0, *each.path), {(0,): self._atom(each.value)}) for each in found]
        self._compute(stage, tensors)

    def _scope(self, body: RelayExpr, to: int | None) -> Scope:
        """A let-chain whose result goes to a register; None: it is the result of the function."""
        self._compute_later(self.plan.before.get(body))
        chain = unchain(body)
        assert chain.result is not None
        last = _last_binding(chain.bindings, chain.result)
        for variable, value in chain.bindings[:last]:
            if isinstance(value, (If, Match)):
                self.registers[variable] = self.new()
                yield self._branches(value, self.registers[variable])
            else:
                self.source = str(value.span or "")
                self.registers[variable] = self._value(value)
            self._compute_later(self.plan.after.get(variable))
        result = chain.result if last == len(chain.bindings) else chain.bindings[last][1]
        if isinstance(result, (If, Match)):
            yield self._branches(result, to)
        else:
            self._give(result, to)

    def _branches(self, choice: If | Match, to: int | None) -> Scope:
        return self._if(choice, to) if isinstance(choice, If) else self._match(choice, to)

    def _give(self, value: RelayExpr, to: int | None) -> None:
        """The end of a scope: its result goes where it belongs."""
        callee = _called(value) if to is None else None
        if isinstance(value, Call) and isinstance(callee, GlobalVar):
            name = callee.name_hint
            if name not in self.program.closures:
                function = self.program.functions[name]
                self.emit("InvokeTail", func=function, args=self._atoms(value.args))
                return
        elif isinstance(value, Call) and callee is not None:
            closure = self._atom(callee)
            self.emit("InvokeClosureTail", closure=closure, args=self._atoms(value.args))
            return
        register = self._atom(value)
        if to is None:
            self.emit("Ret", src=register)
        else:
            self.emit("Move", dst=to, src=register)

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
                return self.into("GetField", object=self._atom(of), index=index)
            case GlobalVar(name_hint=name):
                return self.into("AllocClosure", func=self.program.functions[name], free=())
            case Call():
                return self._call(value)
            case RefCreate(value=held):
                return self.into("AllocRef", value=self._atom(held))
            case RefRead(ref=ref):
                return self.into("ReadRef", ref=self._atom(ref))
            case RefWrite(ref=ref, value=held):
                self.emit("WriteRef", ref=self._atom(ref), value=self._atom(held))
                return self._adt(0, ())
            case _:
                raise InternalError(
                    f"VM compiler: a {type(value).__name__} is not in A-normal form"
                )

    def _alias(self, variable: Var) -> int:
        if variable not in self.registers:
            raise InternalError(
                f"VM compiler: variable %{variable.name_hint} has no register in @{self.name}"
            )
        return self.into("Move", src=self.registers[variable])

    def _atom(self, expr: RelayExpr) -> int:
        """The register of an argument; a variable's own, without a copy."""
        return self.registers[expr] if expr in self.registers else self._value(expr)

    def _atoms(self, exprs: tuple[RelayExpr, ...]) -> tuple[int, ...]:
        return tuple(map(self._atom, exprs))

    def _load_constant(self, data: Array) -> int:
        return self.into("LoadConst", const_index=self.program.constant(data))

    def _load_int(self, value: int) -> int:
        return self.into("LoadConsti", value=value)

    def _adt(self, tag: int, fields: tuple[RelayExpr, ...]) -> int:
        return self.into("AllocADT", tag=tag, fields=self._atoms(fields))

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
                return self.into(
                    kind, func=self.program.functions[name], **{key: self._atoms(call.args)}
                )
            case Constructor(tag=tag):
                return self._adt(tag, call.args)
            case op:
                return self.into(
                    "InvokeClosure", closure=self._atom(op), args=self._atoms(call.args)
                )

    def _operator(self, name: str, call: Call) -> int:
        match name, call.attrs:
            case "memory.alloc_storage", AllocStorageAttrs(
                size=size, alignment=alignment, arena=arena
            ):
                register, index = self._integer(size)
                return self.into(
                    "AllocArena" if arena else "AllocStorage",
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
                return self.into(
                    "ReshapeTensor", tensor=data, shape=register, shape_index=index, ndim=len(shape)
                )
            case "vm.match_shape" | "vm.forget_shape" | "vm.bind_dims", _:
                return self.into("Move", src=self._atom(call.args[0]))
            case "vm.shape_of" | "shape_of", _:
                return self.into("ShapeOf", tensor=self._atom(call.args[0]))
            case "vm.invoke_tvm_op", _:
                return self._invoke_kernel(call)
            case "memory.kill", _:
                return -1  # registers.py knows when values die
            case _ if OPS[name].host:
                return self._call_host(OPS[name].host, call)
            case _:
                where = f" ({call.span})" if call.span else ""
                raise CompileError(
                    f"{name}{where}: the operator has neither a kernel nor an instruction"
                )

    def _integer(self, value: PrimExpr) -> tuple[int, int]:
        """(register, element) of an integer."""
        if isinstance(value, IntImm):
            return self._load_int(value.value), 0
        return self._place((value,))

    def _place(
        self, exprs: tuple[PrimExpr, ...], beside: tuple[PrimExpr, ...] = ()
    ) -> tuple[int, int]:
        """(register, first element) of expressions in the vector of their stage."""
        stage, at = self.plan.place(exprs, beside)
        return self.vectors[stage], at

    def _shape(self, shape: tuple[PrimExpr, ...]) -> tuple[int, int]:
        """(register, first element) of a shape."""
        if is_static(shape):
            return self._load_constant(np.array(values(shape), np.int64)), 0
        return self._place(shape)

    def _alloc_tensor(self, storage: int, attrs: AllocTensorAttrs) -> int:
        if is_static((attrs.offset, *attrs.shape)):
            return self.into(
                "AllocTensor",
                storage=storage,
                offset=values((attrs.offset,))[0],
                dtype=attrs.dtype,
                shape=values(attrs.shape),
            )
        offset = (attrs.offset,)
        offset_register, offset_index = self._place(offset, beside=attrs.shape)
        shape_register, shape_index = self._place(attrs.shape, beside=offset)
        return self.into(
            "AllocTensorReg",
            storage=storage,
            offset=offset_register,
            offset_index=offset_index,
            shape=shape_register,
            shape_index=shape_index,
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
        self.emit("InvokePacked", packed_index=index, output_size=len(outputs.fields), args=args)
        return -1

    def _call_host(self, function: str, call: Call) -> int:
        """A registered function: the arguments, then the attributes that are numbers."""
        fields = fields_of(call.attrs) if call.attrs is not None else ()
        given = [getattr(call.attrs, f.name) for f in fields]
        numbers = [self._load_int(int(v)) for v in given if isinstance(v, int)]
        args = (*self._atoms(call.args), *numbers)
        index = self.program.host_functions[function]
        return self.into("InvokePackedValue", packed_index=index, args=args)

    def _if(self, expr: If, to: int | None) -> Scope:
        if_true, if_false, after = self.label(), self.label(), self.label()
        self.emit("Switch", value=self._atom(expr.cond), offsets=(if_false, if_true))
        self.place(if_true)
        yield self._scope(expr.true_branch, to)
        self._leave(after, to)
        self.place(if_false)
        yield self._scope(expr.false_branch, to)
        self.place(after)

    def _match(self, expr: Match, to: int | None) -> Scope:
        nodes = decision_tree(expr.clauses)
        leaves = Counter(node.clause for node in nodes if isinstance(node, Leaf))
        nothing, after = self.label(), self.label()
        shared: dict[int, int] = {}
        waiting: list[_Waiting] = [(0, self.label(), {(): self._atom(expr.data)})] if nodes else []
        while waiting:
            number, label, parts = waiting.pop()
            node = nodes[number]
            self.place(label)
            if isinstance(node, Test):
                waiting.extend(reversed(self._test(node, parts, nothing)))
            elif leaves[node.clause] > 1:
                self._join(node, parts, shared)
            else:
                self.registers |= {v: self._part(path, parts) for v, path in node.variables}
                yield self._scope(expr.clauses[node.clause].rhs, to)
                self._leave(after, to)
        for clause, label in shared.items():
            self.place(label)
            yield self._scope(expr.clauses[clause].rhs, to)
            self._leave(after, to)
        self.place(nothing)
        self.emit("Fatal")
        self.place(after)

    def _leave(self, after: int, to: int | None) -> None:
        if to is not None:
            self.goto(after)

    def _test(self, test: Test, parts: _Parts, nothing: int) -> list[_Waiting]:
        """Emit a test; what is to be emitted for its outcomes."""
        value = self._part(test.path, parts)
        found = {node: self.label() for node in test.cases.values()}
        other = nothing
        if test.other is not None:
            found[test.other] = other = self.label()
        labels = {tag: found[node] for tag, node in test.cases.items()}
        if max(labels) < MAX_CASES:
            cases = (labels.get(tag, other) for tag in range(max(labels) + 1))
            self.emit("Switch", value=value, offsets=(*cases, other))
        else:
            self._test_each(self.into("GetTag", object=value), labels, other)
        return [(node, label, dict(parts)) for node, label in found.items()]

    def _test_each(self, found: int, labels: dict[int, int], other: int) -> None:
        for tag, label in labels.items():
            further, wanted = self.label(), self._load_int(tag)
            self.emit("If", test=found, target=wanted, true_offset=label, false_offset=further)
            self.place(further)
        self.goto(other)

    def _join(self, leaf: Leaf, parts: _Parts, shared: dict[int, int]) -> None:
        """One of several ways to a clause: they all leave its variables in the same registers."""
        if leaf.clause not in shared:
            shared[leaf.clause] = self.label()
            self.registers |= {variable: self.new() for variable, _ in leaf.variables}
        for variable, path in leaf.variables:
            self.emit("Move", dst=self.registers[variable], src=self._part(path, parts))
        self.goto(shared[leaf.clause])

    def _part(self, path: Path, parts: _Parts) -> int:
        """The register of a part of the value that is matched; `parts` are those that have one."""
        known = next(n for n in range(len(path), -1, -1) if path[:n] in parts)
        for n in range(known, len(path)):
            held = parts[path[:n]]
            parts[path[: n + 1]] = self.into("GetField", object=held, index=path[n])
        return parts[path]


def _last_binding(bindings: Sequence[Binding], result: RelayExpr) -> int:
    """The binding whose value is the result of a chain, but for names and what only says that
    other values die; the number of bindings if there is none.
    """
    for at in range(len(bindings) - 1, -1, -1):
        variable, value = bindings[at]
        if variable is result:
            same = isinstance(value, Call) and op_name(value) == "vm.forget_shape"
            if not (same or isinstance(value, Var)):
                return at
            result = value.args[0] if isinstance(value, Call) else value
        elif op_name(value) != "memory.kill":
            break
    return len(bindings)


def _called(value: RelayExpr) -> RelayExpr | None:
    """What a call calls, if that is a function of the program."""
    if not isinstance(value, Call) or isinstance(value.op, (Op, Constructor)):
        return None
    return value.op


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


def host_functions(module: IRModule) -> list[str]:
    """The registered functions that the operators of a module call, each once, sorted."""
    found: set[str] = set()
    for function in module.functions.values():
        exprs = evaluation_order(function.body) if isinstance(function, Function) else []
        calls = [e.op.name for e in exprs if isinstance(e, Call) and isinstance(e.op, Op)]
        found.update(OPS[name].host for name in calls)
    return sorted(found - {""})


def _constraints(module: IRModule, name: str) -> Sequence[Constraint]:
    """What a frontend says every run of `main` must meet."""
    found = module.attrs.get("constraints", ()) if name == "main" else ()
    assert isinstance(found, Sequence)
    return found


def _sources(functions: Sequence[VMFunction]) -> dict[str, list[list[object]]]:
    """Function -> number of each kernel call, and what it was made from."""
    return {
        f.name: [
            [at, each.source]
            for at, each in enumerate(f.code)
            if each.name == "InvokePacked" and each.source
        ]
        for f in functions
    }


def compile_module(
    module: IRModule,
    target: Target,
    metadata: dict[str, object],
    progress: Progress | None = None,
    *,
    is_native: bool = False,
) -> bytes:
    """The bytes of the executable of a module that the VM pipeline has prepared; with native code
    of its functions beside their bytecode if asked for.

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
    plans = [Plan(n, f, _constraints(module, n)) for n, f in functions.items()]
    shapes = {s: stage_kernel(p, s) for p in plans for s in p.stages if s.dims.exprs}
    fused = primitive_functions(module)
    symbols = {f: build_external(f) for f in fused if is_external(f)}
    fused = [f for f in fused if f not in symbols]
    kernels = build_kernels(fused, list(shapes.values()), target, progress)
    own = dict(zip(fused, kernels.names, strict=True))
    hosts = host_functions(module)
    if hosts:
        metadata = {**metadata, "host_functions": hosts}
    called = [*kernels.names, *(s.name for s in shapes.values()), *symbols.values(), *hosts]
    names = list(dict.fromkeys(called))
    program = _Program({n: i for i, n in enumerate(functions)}, closures)
    program.primitives = {f: names.index(n) for f, n in {**own, **symbols}.items()}
    program.host_functions = {n: names.index(n) for n in hosts}
    program.shape_functions = {stage: names.index(s.name) for stage, s in shapes.items()}
    compiled = [_FunctionCompiler(program, plan).compile() for plan in plans]
    about = {n: describe_kernel(f) for f, n in own.items()}
    metadata = {**metadata, "kernels": about, "sources": _sources(compiled)}
    native = native_code(compiled, names, kernels.exports, target) if is_native else Native()
    image = kernels.link(native.objects, native.exports)
    return write_executable(compiled, program.constants, names, image, metadata)
