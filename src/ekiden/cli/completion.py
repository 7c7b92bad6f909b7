"""Shell completion of commands and options.

Written out here: the packages for it (argcomplete, shtab) start Python for each key, or need more
of a parser than is loaded for `ekiden --help`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["COMPLETION_SHELLS", "completion_script"]

COMPLETION_SHELLS = ("bash", "zsh", "fish")
_BASH_TEMPLATE = """\
_ekiden() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} --help --version"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "$words" -- "$word"))
       else COMPREPLY=($(compgen -f -- "$word")); fi ;;
  esac
}}
complete -o filenames -F _ekiden ekiden"""


def completion_script(
    shell: str, options: Mapping[str, Sequence[str]], commands: Mapping[str, str]
) -> str:
    """Return a shell's completion script for the commands and their options."""
    if shell == "fish":
        return _fish_script(options, commands)
    cases = [
        f'      {name}) words="{" ".join(command_options)}" ;;'
        for name, command_options in options.items()
    ]
    bash = _BASH_TEMPLATE.format(commands=" ".join(commands), cases="\n".join(cases))
    # zsh emulates bash's `complete` through bashcompinit.
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash}" if shell == "zsh" else bash


def _fish_script(options: Mapping[str, Sequence[str]], commands: Mapping[str, str]) -> str:
    """Return the completion script for fish."""
    rows = [
        f"complete -c ekiden -n __fish_use_subcommand -f -a {name} -d {_shell_quote(text)}"
        for name, text in commands.items()
    ]
    rows += [
        f"complete -c ekiden -n '__fish_seen_subcommand_from {name}' {_fish_option(option)}"
        for name, command_options in options.items()
        for option in command_options
    ]
    return "\n".join(rows)


def _fish_option(option: str) -> str:
    name = option.lstrip("-")
    return f"-l {name}" if option.startswith("--") else f"-s {name}"


def _shell_quote(text: str) -> str:
    return "'" + text.replace("'", "") + "'"
