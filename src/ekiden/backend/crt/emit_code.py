"""Emit the routines of a MicroModule as C functions."""

from __future__ import annotations

from ekiden.backend.crt import module as crt
from ekiden.backend.crt.kernels import c_name
from ekiden.backend.crt.module import (
    KernelStep,
    Location,
    MemoryHome,
    MicroModule,
    Routine,
    Statement,
)
from ekiden.runtime.lazy_dataclass import dataclass

ENTRY_POINT = "run_arrays"
"""The function of the last routine."""
ENTRY_VARIABLE = "entry"
"""The variable that says which function of a group runs."""
TAKE_FUNCTION = """\

/* Copy what lies elsewhere. */
static void take(uint8_t *to, const uint8_t *from, size_t nbytes) {
  if (from != NULL && from != to) memcpy(to, from, nbytes);
}
"""


def emit_routines(module: MicroModule, prefix: str) -> str:
    """Return the functions of the model, callees first; the last one is `run_arrays`."""
    names = _names(module)
    groups = {routine.name for routine in module.routines if routine.entries > 1}
    main = module.routines[-1]
    emitters = [
        _Emitter(module, prefix, routine, names, groups, routine is main)
        for routine in module.routines
    ]
    texts = "".join(emitter.text() for emitter in emitters)
    return _numbers(module) + TAKE_FUNCTION * any(e.takes for e in emitters) + texts


def _names(module: MicroModule) -> dict[str, str]:
    """Return the name in C of each routine."""
    names = {module.routines[-1].name: ENTRY_POINT}
    for routine in module.routines[:-1]:
        base = f"run_{c_name(routine.name)}"
        name, count = base, 0
        while name in names.values():
            count += 1
            name = f"{base}_{count}"
        names[routine.name] = name
    return names


def _numbers(module: MicroModule) -> str:
    """Return the C table of constructor tags, or "" if there are none."""
    operands = [p for r in module.routines for s in r.code for p in s.places]
    count = max((p.number + 1 for p in operands if p.home is MemoryHome.NUMBER), default=0)
    if count == 0:
        return ""
    return f"\nstatic const int32_t numbers[] = {{{', '.join(map(str, range(count)))}}};\n"


@dataclass(slots=True)
class _Emitter:
    """Emitter of one routine."""

    module: MicroModule
    prefix: str
    routine: Routine
    names: dict[str, str]
    groups: set[str]
    """Routines of several functions."""
    is_main: bool
    takes: bool = False
    """Whether it calls `take`."""

    def text(self) -> str:
        """Return the function."""
        lines = [f"(void){name};" for name in self._unused()] + self._variables()
        lines += self._body()
        body = "".join(f"  {line}\n" for line in lines)
        return f"\nstatic int32_t {self._head()} {{\n{body}}}\n"

    def _unused(self) -> list[str]:
        if self.is_main:
            return ["inputs", "outputs", "pools"]
        inputs = [f"in{n}" for n in range(len(self.routine.inputs))]
        return ["memory", *inputs, *(f"out{n}" for n in range(self.routine.outputs))]

    def _head(self) -> str:
        if self.is_main:
            return f"{ENTRY_POINT}(void *const *inputs, void *const *outputs, void *const *pools)"
        entry = [f"int32_t {ENTRY_VARIABLE}"] if self.routine.entries > 1 else []
        inputs = [
            f"{'' if is_cell else 'const '}uint8_t *in{n}"
            for n, is_cell in enumerate(self.routine.inputs)
        ]
        outputs = [f"uint8_t *out{n}" for n in range(self.routine.outputs)]
        parameters = ", ".join([*entry, *inputs, *outputs, "uint8_t *memory"])
        return f"{self.names[self.routine.name]}({parameters})"

    def _variables(self) -> list[str]:
        lines = []
        if self.is_main and self.routine.entries > 1:
            lines.append(f"int32_t {ENTRY_VARIABLE} = 0;")
        rows = zip(self.routine.locals, self.routine.starts, strict=True)
        for number, (is_cell, start) in enumerate(rows):
            if start is not None:
                kind = "uint8_t *" if is_cell else "const uint8_t *"
                lines += [f"{kind}v{number} = {self._address(start)};", f"(void)v{number};"]
        return lines + [f"int32_t clause{n} = -1;" for n in range(self.routine.matches)]

    def _body(self) -> list[str]:
        """Return the lines of the statements, indented by the blocks that are open."""
        lines: list[str] = []
        blocks: list[Statement] = []
        for statement in self.routine.code:
            match statement:
                case crt.Else():
                    blocks.pop()
                    lines.append("  " * len(blocks) + "} else {")
                    blocks.append(statement)
                case crt.End():
                    if isinstance(blocks[-1], crt.Case):
                        lines.append("  " * len(blocks) + "break;")
                    blocks.pop()
                    lines.append("  " * len(blocks) + "}")
                case crt.If() | crt.Switch() | crt.Case() | crt.Clauses() | crt.Loop():
                    lines.append("  " * len(blocks) + self._opened(statement))
                    blocks.append(statement)
                case _:
                    lines += ["  " * len(blocks) + line for line in self._lines(statement)]
        return lines

    def _opened(self, statement: Statement) -> str:
        """Return the header of a block."""
        match statement:
            case crt.If(places=(test,)):
                return f"if (*{self._address(test)} != 0) {{"
            case crt.Switch(places=()):
                return f"switch ({ENTRY_VARIABLE}) {{"
            case crt.Switch(places=(value,)):
                return f"switch ({self._number(value)}) {{"
            case crt.Case(number=None):
                return "default: {"
            case crt.Case(number=number):
                return f"case {number}: {{"
            case crt.Clauses(match=number):
                return f"switch (clause{number}) {{"
            case _:
                return "for (;;) {"

    def _lines(self, statement: Statement) -> list[str]:
        """Return the lines of a statement that opens no block."""
        match statement:
            case KernelStep():
                return [self._step(statement)]
            case crt.SetAddress(local=local, places=(location,)):
                return [f"v{local} = {self._address(location)};"]
            case crt.Choose(match=number, clause=clause):
                return [f"clause{number} = {clause};"]
            case crt.Again(entry=entry):
                is_group = self.routine.entries > 1
                return [*([f"{ENTRY_VARIABLE} = {entry};"] if is_group else []), "continue;"]
            case crt.Return():
                return ["return 0;"]
            case crt.Fail(reason=reason):
                return [f"return -1; /* {_comment(reason)} */"]
            case crt.Invoke():
                return [self._invoke(statement)]
            case crt.Append():
                return self._append(statement)
            case crt.Expect(length=length, places=(count,)):
                return [f"if ({self._number(count)} != {length}) return -1;"]
            case crt.Reverse(length=length, nbytes=nbytes, places=(source, target)):
                last = f"(size_t)({length} - 1 - n) * {nbytes}"
                copy = f"memcpy({self._address(target)} + (size_t)n * {nbytes}, "
                copy += f"{self._address(source)} + {last}, {nbytes});"
                return [f"for (int32_t n = 0; n < {length}; n++)", f"  {copy}"]
            case _:
                raise AssertionError(statement)

    def _number(self, location: Location) -> str:
        return f"*(const int32_t *)(const void *){self._address(location)}"

    def _append(self, statement: crt.Append) -> list[str]:
        count, elements, element, after = statement.places
        where = f"{self._address(elements)} + (size_t)n * {statement.nbytes}"
        return [
            "{",
            f"  const int32_t n = {self._number(count)};",
            f"  if (n >= {statement.capacity}) return -1;",
            f"  memcpy({where}, {self._address(element)}, {statement.nbytes});",
            f"  *(int32_t *)(void *){self._address(after)} = n + 1;",
            "}",
        ]

    def _invoke(self, call: crt.Invoke) -> str:
        entry = [str(call.entry)] if call.routine in self.groups else []
        arguments = ", ".join([*entry, *map(self._address, call.places)])
        source = f" /* {_comment(call.source)} */" if call.source else ""
        return f"if ({self.names[call.routine]}({arguments}) != 0) return -1;{source}"

    def _step(self, step: KernelStep) -> str:
        if step.kernel is None:
            source, target = step.places
            homes = (MemoryHome.LOCAL,) if self.is_main else (MemoryHome.LOCAL, MemoryHome.INPUT)
            function = "take" if source.home in homes else "memcpy"
            self.takes |= source.home in homes
            return f"{function}({self._address(target)}, {self._address(source)}, {step.nbytes});"
        kinds = [f"{'const ' * p.is_read}{p.c_type} *" for p in step.kernel.parameters]
        kinds += ["uint8_t *"] * (len(step.places) - len(kinds))
        arguments = [
            self._argument(kind, location)
            for kind, location in zip(kinds, step.places, strict=True)
        ]
        source_text = f" /* {_comment(step.source)} */" if step.source else ""
        call = f"{step.kernel.name}({', '.join(arguments)})"
        return f"if ({call} != 0) return -1;{source_text}"

    def _argument(self, kind: str, location: Location) -> str:
        if location.home is MemoryHome.CONSTANT:
            return self._base(location)
        const = "const " * kind.startswith("const ")
        return f"({kind})({const}void *){self._address(location)}"

    def _address(self, location: Location) -> str:
        """Return the byte address of a location."""
        base = self._base(location)
        if location.home in (MemoryHome.CONSTANT, MemoryHome.NUMBER):
            assert location.offset == 0
            return f"(const uint8_t *){base}"
        return f"({base} + {location.offset})" if location.offset else base

    def _base(self, location: Location) -> str:
        match location.home:
            case MemoryHome.CONSTANT:
                return f"{self.prefix}_constant_{location.number}"
            case MemoryHome.NUMBER:
                return f"&numbers[{location.number}]"
            case MemoryHome.NOWHERE:
                return "NULL"
            case MemoryHome.LOCAL:
                return f"v{location.number}"
            case MemoryHome.POOL:
                return self._memory(location.number)
            case MemoryHome.INPUT if not self.is_main:
                return f"in{location.number}"
            case MemoryHome.OUTPUT if not self.is_main:
                return f"out{location.number}"
            case home:
                return f"(uint8_t *){home.value}s[{location.number}]"

    def _memory(self, number: int) -> str:
        if not self.is_main:
            return "memory"
        if self.module.has_own_memory:
            return "arena" if self.module.workspace else "NULL"
        return f"((uint8_t *)pools[{number}])"


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ").replace("\\", "/").replace("??", "? ?")


__all__ = ["emit_routines"]
