"""Lists of pass names on the command line."""

from __future__ import annotations

from ekiden.driver.tvmc.shape_parser import ArgumentError
from ekiden.ir.transform import registered_passes

__all__ = ["parse_pass_list_str"]


def parse_pass_list_str(input_string: str) -> list[str]:
    """Split names of passes at commas, with or without their prefix ("relay.", "tir.").

    Raises ArgumentError that lists the names of no pass.
    """
    names = input_string.split(",")
    pass_names = registered_passes()
    unknown = [name for name in names if name and name.rpartition(".")[2] not in pass_names]
    if unknown:
        raise ArgumentError(
            f"'{input_string}': no pass is called {', '.join(unknown)}; there are: "
            + ", ".join(sorted(pass_names))
        )
    return names
