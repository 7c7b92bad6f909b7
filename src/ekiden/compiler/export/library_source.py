"""C source of a library that embeds a compiled model: its bytes, exported functions, and references
to external C functions.

The runtime's side of it is runtime/src/ek_export.h. Several such texts may be linked into one
program: what Ekiden's own loader finds a library's model by is weak, the rest has names of its own
where `prefix` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ekiden.codegen.llvm.image import EXTERN_PREFIX, IMAGE_MAGIC, parse_image
from ekiden.runtime.artifact.chunks import Bytes
from ekiden.runtime.artifact.container_format import ARTIFACT_MAGIC as ARTIFACT
from ekiden.runtime.artifact.container_format import read_sections
from ekiden.runtime.binding.layout import Section

_SOURCE_HEAD = """\
/* A model that Ekiden compiled, as the functions {names}.
**
** cc -c this file, and link it with Ekiden's runtime (libekiden_runtime.a) and threads. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif
#define SHOWN __attribute__((visibility("default")))
"""
_INCBIN_SECTION = """
/* A section of its own, so that its alignment is that of the constants in it. */
extern const unsigned char ek_bytes[] __asm__("ek_bytes_of_model");
__asm__(".section .rodata.ekiden,\\"a\\",%progbits\\n"
        ".balign 64\\n"
        ".weak __ek_executable\\n"
        ".type __ek_executable,%object\\n"
        ".size __ek_executable,{size}\\n"
        "__ek_executable:\\n"
        "ek_bytes_of_model:\\n"
        ".incbin \\"{file}\\"\\n"
        ".previous\\n");
"""
_BYTES_DECLARATION = """
static const unsigned char ek_bytes[{size}];
SHOWN extern const unsigned char __ek_executable[{size}]
    __attribute__((weak, alias("ek_bytes")));
"""
_EXTERN_TABLE = """
/* C functions that its kernels call. */
typedef struct {{
  const char *name;
  const void *address;
}} ek_extern;
{declared}
SHOWN extern const ek_extern __ek_extern_[] __attribute__((weak));
const ek_extern __ek_extern_[] = {{
{rows}  {{0, 0}},
}};
static const ek_extern ek_externs[] = {{
{rows}  {{0, 0}},
}};
"""
_CALL_HELPER = """
SHOWN extern const uint64_t __ek_executable_size __attribute__((weak));
const uint64_t __ek_executable_size = {size}u;

typedef struct {{
  void *function;
  const char *name;
  const void *begin;
  uint64_t size;
  const void *externs;
}} ek_export;

int ek_export_call(ek_export *program, const void *args, int32_t nargs, void *ret);
"""
_FUNCTION_TEMPLATE = """
SHOWN int __tvm_ffi_{prefix}{name}(void *self, const void *args, int32_t nargs, void *ret);
int __tvm_ffi_{prefix}{name}(void *self, const void *args, int32_t nargs, void *ret) {{
  static ek_export program = {{0, "{name}", ek_bytes, {size}u, {externs}}};
  (void)self;
  return ek_export_call(&program, args, nargs, ret);
}}
"""
_SOURCE_TAIL = """
#ifdef __cplusplus
}
#endif
"""
DECIMAL_ARRAY_HEADER = "_Alignas(64) static const unsigned char ek_bytes[] = {\n"
"""C declaration that begins the model's bytes as a decimal array."""


def library_source(
    size: int,
    names: Sequence[str],
    externs: Sequence[str],
    file: str | None,
    prefix: str = "",
) -> str:
    """Return the C source that exports the functions of a model.

    Args:
        size: of its bytes.
        names: of its functions; those that are no C identifiers are left out.
        externs: the C functions that its kernels call, which the linker finds.
        file: where its bytes stand, for the assembler; None: they follow as `NUMBERS`.
        prefix: before the functions' names, in their symbols.
    """
    shown = [n for n in names if re.fullmatch(r"[A-Za-z0-9_]+", n)]
    sections = [_SOURCE_HEAD.format(names=", ".join(prefix + n for n in shown))]
    sections.append(_BYTES_DECLARATION.format(size=size) if file is None else
                    _INCBIN_SECTION.format(size=size, file=file))  # fmt: skip
    if externs:
        declared = "\n".join(
            f'extern const char ek_extern_{at}[] __asm__("{name}");'
            for at, name in enumerate(externs)
        )
        rows = "".join(f'  {{"{name}", ek_extern_{at}}},\n' for at, name in enumerate(externs))
        sections.append(_EXTERN_TABLE.format(declared=declared, rows=rows))
    sections.append(_CALL_HELPER.format(size=size))
    table = "ek_externs" if externs else "0"
    sections += [
        _FUNCTION_TEMPLATE.format(name=n, size=size, prefix=prefix, externs=table) for n in shown
    ]
    return "".join([*sections, _SOURCE_TAIL])


def extern_functions(modules: Iterable[Bytes]) -> list[str]:
    """Return the C functions that the kernels of executables and code images call, sorted."""
    called: set[str] = set()
    for module in modules:
        contents = memoryview(module)
        if bytes(contents[: len(IMAGE_MAGIC)]) == IMAGE_MAGIC:
            images = [contents]
        elif bytes(contents[: len(ARTIFACT)]) != ARTIFACT:
            images = []
        else:
            images = [p for kind, _, p in read_sections(contents) if kind is Section.IMAGE]
        for image in images:
            imports = parse_image(bytes(image)).imports if len(image) else ()
            called.update(
                n.removeprefix(EXTERN_PREFIX) for n in imports if n.startswith(EXTERN_PREFIX)
            )
    return sorted(called)
