"""Deployment to machines without an allocator: dependency-free C, projects around it, sessions.

    program = micro.compile(model, "c -mcpu=cortex-m7")
    micro.export_model_library_format(program, "model.tar")
    project = micro.generate_project("qemu-mps2-an500", "model.tar", "project")
    project.build()
    with micro.Session(project.open_transport()) as session:
        print(session.run(x=x))

Names and meanings follow TVM's `tvm.micro` where the concept is the same.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.backend.crt.micro_module import MicroModule, Pool
from ekiden.compiler.export.micro import MicroProgram, compile
from ekiden.compiler.export.model_library import export_model_library_format
from ekiden.micro import project
from ekiden.micro.footprint import Footprint, footprint
from ekiden.micro.project import (
    GeneratedProject,
    Sizes,
    generate_project,
    get_microtvm_template_projects,
)
from ekiden.micro.report import MemoryReport, memory_report
from ekiden.micro.session import MicroExecutor, Session
from ekiden.micro.templates import TEMPLATES, Template

__all__ = [
    "TEMPLATES",
    "Footprint",
    "GeneratedProject",
    "MemoryReport",
    "MicroExecutor",
    "MicroModule",
    "MicroProgram",
    "Pool",
    "Session",
    "Sizes",
    "Template",
    "compile",
    "export_model_library_format",
    "footprint",
    "generate_project",
    "get_microtvm_template_projects",
    "memory_report",
    "project",
]
