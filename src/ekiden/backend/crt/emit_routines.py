"""Emit the routines of a MicroModule as C functions."""

from __future__ import annotations

from ekiden.backend.crt import micro_module as crt
from ekiden.backend.crt.kernels import c_identifier
from ekiden.backend.crt.micro_module import (
    EntryPoint,
    KernelCallStatement,
    Location,
    MemorySpace,
    MicroModule,
    Routine,
    Statement,
)
from ekiden.runtime.lazy_dataclass import dataclass

ENTRY_POINT_NAME = "run_arrays"
"""C name of the last routine, the entry point."""
ARRAYS_PARAMETERS = "void *const *inputs, void *const *outputs, void *const *pools"
"""C parameters of entry points: an address for each input, output and memory."""
ENTRY_VARIABLE_NAME = "entry"
"""C variable that selects the running function of a group."""
COPY_HELPER = """\

/* Copy what lies elsewhere. */
static void take(uint8_t *to, const uint8_t *from, size_t nbytes) {
  if (from != NULL && from != to) memcpy(to, from, nbytes);
}
"""


def emit_routines(module: MicroModule, prefix: str) -> str:
    """Return the functions of the model, callees first; the last one is `run_arrays`."""
    names = _routine_names(module)
    groups = {routine.name for routine in module.routines if routine.entries > 1}
    main = module.routines[-1]
    emitters = [
        _RoutineEmitter(module, prefix, routine, names, groups, routine is main)
        for routine in module.routines
    ]
    texts = "".join(emitter.emit_function() for emitter in emitters)
    return (
        _constructor_table(module) + COPY_HELPER * any(e.uses_copy_helper for e in emitters) + texts
    )


def emit_entry(module: MicroModule, entry: EntryPoint, name: str) -> str:
    """Return the function `name` over arrays of addresses that calls the routine of an entry point
    besides `main`.
    """
    (routine,) = (r for r in module.routines if r.name == entry.routine)
    number = [str(entry.entry)] if routine.entries > 1 else []
    first = entry.first_input
    unused = ["NULL"] * len(routine.inputs)
    unused[first : first + len(entry.inputs)] = [f"inputs[{n}]" for n in range(len(entry.inputs))]
    outputs = [f"outputs[{n}]" for n in range(len(entry.outputs))]
    arguments = ", ".join([*number, *unused, *outputs, _pool_pointer(module, entry.pool)])
    return (
        f"\nstatic int32_t {name}({ARRAYS_PARAMETERS}) {{\n"
        "  (void)inputs;\n  (void)outputs;\n  (void)pools;\n"
        f"  return {_routine_names(module)[entry.routine]}({arguments});\n}}\n"
    )


def _pool_pointer(module: MicroModule, number: int) -> str:
    """Return the address of a memory in a function over arrays of addresses."""
    if module.has_own_memory:
        return "arena" if module.workspace else "NULL"
    return f"((uint8_t *)pools[{number}])"


def _routine_names(module: MicroModule) -> dict[str, str]:
    """Return the name in C of each routine."""
    names = {module.routines[-1].name: ENTRY_POINT_NAME}
    for routine in module.routines[:-1]:
        base = f"run_{c_identifier(routine.name)}"
        name, count = base, 0
        while name in names.values():
            count += 1
            name = f"{base}_{count}"
        names[routine.name] = name
    return names


def _constructor_table(module: MicroModule) -> str:
    """Return the C table of constructor tags, or "" if there are none."""
    operands = [p for r in module.routines for s in r.code for p in s.locations]
    count = max((p.number + 1 for p in operands if p.home is MemorySpace.NUMBER), default=0)
    if count == 0:
        return ""
    return f"\nstatic const int32_t numbers[] = {{{', '.join(map(str, range(count)))}}};\n"


@dataclass(slots=True)
class _RoutineEmitter:
    """Emitter of one routine."""

    module: MicroModule
    prefix: str
    routine: Routine
    names: dict[str, str]
    groups: set[str]
    """Routines with several functions."""
    is_main: bool
    uses_copy_helper: bool = False
    """Whether it calls the copy helper."""

    def emit_function(self) -> str:
        """Return the function."""
        lines = [
            f"(void){name};" for name in self._unused_parameter_casts()
        ] + self._local_declarations()
        lines += self._body_lines()
        body = "".join(f"  {line}\n" for line in lines)
        return f"\nstatic int32_t {self._function_header()} {{\n{body}}}\n"

    def _unused_parameter_casts(self) -> list[str]:
        if self.is_main:
            return ["inputs", "outputs", "pools"]
        inputs = [f"in{n}" for n in range(len(self.routine.inputs))]
        return ["memory", *inputs, *(f"out{n}" for n in range(self.routine.outputs))]

    def _function_header(self) -> str:
        if self.is_main:
            return f"{ENTRY_POINT_NAME}({ARRAYS_PARAMETERS})"
        entry = [f"int32_t {ENTRY_VARIABLE_NAME}"] if self.routine.entries > 1 else []
        inputs = [
            f"{'' if is_cell else 'const '}uint8_t *in{n}"
            for n, is_cell in enumerate(self.routine.inputs)
        ]
        outputs = [f"uint8_t *out{n}" for n in range(self.routine.outputs)]
        parameters = ", ".join([*entry, *inputs, *outputs, "uint8_t *memory"])
        return f"{self.names[self.routine.name]}({parameters})"

    def _local_declarations(self) -> list[str]:
        lines = []
        if self.is_main and self.routine.entries > 1:
            lines.append(f"int32_t {ENTRY_VARIABLE_NAME} = 0;")
        rows = zip(self.routine.locals, self.routine.initial_locations, strict=True)
        for number, (is_cell, start) in enumerate(rows):
            if start is not None:
                kind = "uint8_t *" if is_cell else "const uint8_t *"
                lines += [f"{kind}v{number} = {self._byte_address(start)};", f"(void)v{number};"]
        return lines + [f"int32_t clause{n} = -1;" for n in range(self.routine.matches)]

    def _body_lines(self) -> list[str]:
        """Return the lines of the statements, indented by the depth of open blocks."""
        lines: list[str] = []
        blocks: list[Statement] = []
        for statement in self.routine.code:
            match statement:
                case crt.ElseHeader():
                    blocks.pop()
                    lines.append("  " * len(blocks) + "} else {")
                    blocks.append(statement)
                case crt.BlockEnd():
                    if isinstance(blocks[-1], crt.CaseHeader):
                        lines.append("  " * len(blocks) + "break;")
                    blocks.pop()
                    lines.append("  " * len(blocks) + "}")
                case (
                    crt.IfHeader()
                    | crt.SwitchHeader()
                    | crt.CaseHeader()
                    | crt.ClauseSwitchHeader()
                    | crt.LoopHeader()
                ):
                    lines.append("  " * len(blocks) + self._block_header(statement))
                    blocks.append(statement)
                case _:
                    lines += [
                        "  " * len(blocks) + line for line in self._statement_lines(statement)
                    ]
        return lines

    def _block_header(self, statement: Statement) -> str:
        """Return the header of a block."""
        match statement:
            case crt.IfHeader(locations=(test,)):
                return f"if (*{self._byte_address(test)} != 0) {{"
            case crt.SwitchHeader(locations=()):
                return f"switch ({ENTRY_VARIABLE_NAME}) {{"
            case crt.SwitchHeader(locations=(value,)):
                return f"switch ({self._load_number(value)}) {{"
            case crt.CaseHeader(number=None):
                return "default: {"
            case crt.CaseHeader(number=number):
                return f"case {number}: {{"
            case crt.ClauseSwitchHeader(match=number):
                return f"switch (clause{number}) {{"
            case _:
                return "for (;;) {"

    def _statement_lines(self, statement: Statement) -> list[str]:
        """Return the lines of a statement that opens no block."""
        match statement:
            case KernelCallStatement():
                return [self._kernel_call(statement)]
            case crt.SetAddressStatement(local=local, locations=(location,)):
                return [f"v{local} = {self._byte_address(location)};"]
            case crt.SelectClause(match=number, clause=clause):
                return [f"clause{number} = {clause};"]
            case crt.ContinueLoop(entry=entry):
                is_group = self.routine.entries > 1
                return [*([f"{ENTRY_VARIABLE_NAME} = {entry};"] if is_group else []), "continue;"]
            case crt.ReturnStatement():
                return ["return 0;"]
            case crt.FailStatement(reason=reason):
                return [f"return -1; /* {_c_comment(reason)} */"]
            case crt.RoutineCallStatement():
                return [self._routine_call(statement)]
            case crt.ListAppend():
                return self._append_lines(statement)
            case crt.CheckListLength(length=length, locations=(count,)):
                return [f"if ({self._load_number(count)} != {length}) return -1;"]
            case crt.ReverseList(length=length, nbytes=nbytes, locations=(source, target)):
                last = f"(size_t)({length} - 1 - n) * {nbytes}"
                copy = f"memcpy({self._byte_address(target)} + (size_t)n * {nbytes}, "
                copy += f"{self._byte_address(source)} + {last}, {nbytes});"
                return [f"for (int32_t n = 0; n < {length}; n++)", f"  {copy}"]
            case _:
                raise AssertionError(statement)

    def _load_number(self, location: Location) -> str:
        return f"*(const int32_t *)(const void *){self._byte_address(location)}"

    def _append_lines(self, statement: crt.ListAppend) -> list[str]:
        count, elements, element, after = statement.locations
        where = f"{self._byte_address(elements)} + (size_t)n * {statement.nbytes}"
        return [
            "{",
            f"  const int32_t n = {self._load_number(count)};",
            f"  if (n >= {statement.capacity}) return -1;",
            f"  memcpy({where}, {self._byte_address(element)}, {statement.nbytes});",
            f"  *(int32_t *)(void *){self._byte_address(after)} = n + 1;",
            "}",
        ]

    def _routine_call(self, call: crt.RoutineCallStatement) -> str:
        entry = [str(call.entry)] if call.routine in self.groups else []
        arguments = ", ".join([*entry, *map(self._byte_address, call.locations)])
        source = f" /* {_c_comment(call.source)} */" if call.source else ""
        return f"if ({self.names[call.routine]}({arguments}) != 0) return -1;{source}"

    def _kernel_call(self, step: KernelCallStatement) -> str:
        if step.kernel is None:
            source, target = step.locations
            homes = (MemorySpace.LOCAL,) if self.is_main else (MemorySpace.LOCAL, MemorySpace.INPUT)
            function = "take" if source.home in homes else "memcpy"
            self.uses_copy_helper |= source.home in homes
            addresses = f"{self._byte_address(target)}, {self._byte_address(source)}"
            return f"{function}({addresses}, {step.nbytes});"
        kinds = [f"{'const ' * p.is_read}{p.c_type} *" for p in step.kernel.parameters]
        kinds += ["uint8_t *"] * (len(step.locations) - len(kinds))
        arguments = [
            self._kernel_argument(kind, location)
            for kind, location in zip(kinds, step.locations, strict=True)
        ]
        source_text = f" /* {_c_comment(step.source)} */" if step.source else ""
        call = f"{step.kernel.name}({', '.join(arguments)})"
        return f"if ({call} != 0) return -1;{source_text}"

    def _kernel_argument(self, kind: str, location: Location) -> str:
        if location.home is MemorySpace.CONSTANT:
            return self._base_pointer(location)
        const = "const " * kind.startswith("const ")
        return f"({kind})({const}void *){self._byte_address(location)}"

    def _byte_address(self, location: Location) -> str:
        """Return the byte address of a location."""
        base = self._base_pointer(location)
        if location.home in (MemorySpace.CONSTANT, MemorySpace.NUMBER):
            assert location.offset == 0
            return f"(const uint8_t *){base}"
        return f"({base} + {location.offset})" if location.offset else base

    def _base_pointer(self, location: Location) -> str:
        match location.home:
            case MemorySpace.CONSTANT:
                return f"{self.prefix}_constant_{location.number}"
            case MemorySpace.NUMBER:
                return f"&numbers[{location.number}]"
            case MemorySpace.NOWHERE:
                return "NULL"
            case MemorySpace.LOCAL:
                return f"v{location.number}"
            case MemorySpace.POOL:
                return self._frame_pointer(location.number)
            case MemorySpace.INPUT if not self.is_main:
                return f"in{location.number}"
            case MemorySpace.OUTPUT if not self.is_main:
                return f"out{location.number}"
            case home:
                return f"(uint8_t *){home.value}s[{location.number}]"

    def _frame_pointer(self, number: int) -> str:
        return _pool_pointer(self.module, number) if self.is_main else "memory"


def _c_comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ").replace("\\", "/").replace("??", "? ?")


__all__ = ["ENTRY_POINT_NAME", "emit_entry", "emit_routines"]
