"""`ekiden debug FILE`: a prompt before each instruction; commands may come from a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np

from ekiden.cli.options import (
    MODEL_FILE_HELP,
    add_dim_argument,
    load_named_arrays,
    open_executable,
    parse_decimal,
    parse_dim_sizes,
)
from ekiden.compiler.locate_tensor import find_tensor
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.runtime import Tensor
from ekiden.runtime.debug.debugger import CodeLocation, Stepper
from ekiden.runtime.debug.disassemble import print_instruction
from ekiden.runtime.debug.instructions import Instruction, decode
from ekiden.runtime.errors import EkidenError, InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.profile.report import tensor_nodes

DEBUGGER_HELP = """\
step [N]                run N instructions (1)
continue                run to the next breakpoint, or to the end
break [FUNCTION:]N      stop before instruction N
break "NODE"            stop before what was made from a node, or a tensor, of the model
registers [FRAME]       what the registers hold; 0 is the innermost frame
print REGISTER          the elements of a tensor
print NAME              those of a tensor by its name in the model
where                   the next instruction of each function that is under way
list                    the instructions around the next one
save FILE               write the state; --state FILE goes on from it, in another process too
quit"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help=MODEL_FILE_HELP)
    add_dim_argument(parser)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=array.npy",
        help="the array of an input (default: random numbers)",
    )
    parser.add_argument(
        "--state", metavar="FILE", help="resume from a state that the command `save` wrote"
    )


def run(options: argparse.Namespace) -> int:
    """Read commands from standard input until `quit`, its end, or the end of the run."""
    executable = open_executable(options.file)
    prompt = DebuggerPrompt(executable)
    if options.state is None:
        feed = random_inputs(
            executable, parse_dim_sizes(options.dim), load_named_arrays(options.input)
        )
        prompt.stepper.start("main", *(feed[info.name] for info in executable.inputs))
    else:
        prompt.stepper.load_state(options.state)
    prompt.print_next_instruction()
    while not prompt.is_over:
        print("(ekiden) ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        prompt.execute_command(line)
    return 0


class DebuggerPrompt:
    """Command interpreter of `ekiden debug`."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.stepper = Stepper(executable.raw)
        self.code: dict[str, list[Instruction]] = {
            name: decode(executable.raw.code(name)[1]) for name in executable.raw.globals
        }
        self.is_over = False
        self.commands: dict[str, Callable[[str], None]] = {
            "step": self.do_step,
            "continue": self.do_continue,
            "break": self.do_break,
            "registers": self.do_registers,
            "print": self.do_print,
            "where": self.do_where,
            "list": self.do_list,
            "save": self.do_save,
            "help": lambda _: print(DEBUGGER_HELP),
            "quit": self.do_quit,
        }

    def execute_command(self, line: str) -> None:
        """Execute one command, given by an unambiguous prefix, printing any error."""
        word, _, argument = line.strip().partition(" ")
        if not word:
            return
        matches = [name for name in self.commands if name.startswith(word)]
        if not matches:
            print(f"no command is called '{word}'; there are {', '.join(self.commands)}")
            return
        try:
            self.commands[matches[0]](argument.strip())
        except (EkidenError, OSError, ValueError) as error:
            print(f"{matches[0]}: {error}")
            # An error of the program itself ends the run, a mistyped command does not.
            self.is_over = self.is_over or not self._is_running()

    def _is_running(self) -> bool:
        try:
            return bool(self.stepper.frames())
        except RuntimeError:
            return False

    def do_step(self, text: str) -> None:
        """Run `step [N]`."""
        self._print_position(self.stepper.step(_parse_instruction_number(text or "1")))

    def do_continue(self, _: str) -> None:
        """Run `continue`."""
        self._print_position(self.stepper.resume())

    def _print_position(self, has_ended: bool) -> None:
        if not has_ended:
            self.print_next_instruction()
            return
        self.is_over = True
        print(f"the run has ended: {_format_type(self.stepper.result)}")

    def print_next_instruction(self) -> None:
        """Print the next instruction."""
        print(self._format_instruction(self.stepper.where()))

    def _format_instruction(self, location: CodeLocation) -> str:
        """Format the instruction at a location, with its source node."""
        text = print_instruction(self.code[location.function][location.instruction])
        source = self.stepper.source(location)
        return f"{location}  {text}" + (f"   # {source}" if source else "")

    def do_break(self, text: str) -> None:
        """Run `break 3`, `break main:3` or `break "Conv 'layer1'"`."""
        function, colon, number = text.rpartition(":")
        if (position := parse_decimal(number)) is not None:
            caller = function if colon else self.stepper.where().function
            locations = self.stepper.set_breakpoint(caller, position)
        else:
            name = text.strip('"')
            node, _ = tensor_nodes(self.executable.raw).get(name, (name, 0))
            locations = self.stepper.set_breakpoint(source=node)
        for location in locations:
            print(f"breakpoint at {self._format_instruction(location)}")

    def do_registers(self, text: str) -> None:
        """Run `registers [FRAME]`."""
        for number, value in enumerate(
            self.stepper.registers(_parse_instruction_number(text or "0"))
        ):
            if value is not None:
                print(f"${number} = {_format_type(value)}")

    def do_print(self, text: str) -> None:
        """Run `print 3`, `print $3` or `print NAME`. Raises InputError if there is no such register
        or tensor.
        """
        if parse_decimal(text.removeprefix("$")) is None:
            tensor_location = find_tensor(
                self.executable.raw, self.code, self.stepper.frames(), text
            )
            print(
                _format_elements(
                    self.stepper.registers(tensor_location.frame)[tensor_location.register]
                )
            )
            return
        number, values = _parse_instruction_number(text.removeprefix("$")), self.stepper.registers()
        if number >= len(values):
            raise InputError(f"expected a register below {len(values)}, got {number}")
        print(_format_elements(values[number]))

    def do_where(self, _: str) -> None:
        """Run `where`."""
        for frame in self.stepper.frames():
            print(self._format_instruction(frame))

    def do_list(self, _: str) -> None:
        """Run `list`."""
        position = self.stepper.where()
        for number in range(max(0, position.instruction - 5), position.instruction + 6):
            if number < len(self.code[position.function]):
                mark = "->" if number == position.instruction else "  "
                print(f"{mark} {self._format_instruction(CodeLocation(position.function, number))}")

    def do_save(self, text: str) -> None:
        """Run `save FILE`."""
        self.stepper.save_state(text)

    def do_quit(self, _: str) -> None:
        """Run `quit`."""
        self.is_over = True


def _format_elements(value: object) -> str:
    shown = value.numpy() if isinstance(value, Tensor) else value
    return np.array2string(shown) if isinstance(shown, np.ndarray) else str(shown)


def _parse_instruction_number(text: str) -> int:
    number = parse_decimal(text)
    if number is None:
        raise InputError(f"expected a number, got '{text}'")
    return number


def _format_type(value: object) -> str:
    """Format the type of a value as `float32[2, 3]` or `(float32[2], 3)`; scalars print as
    themselves.
    """
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_type, value))})"
    return repr(value)
