"""What kind of tool a name stands for, where the transcript does not say it itself."""

from __future__ import annotations

from typing import Any

from keystone_action.evidence.trace import TOOL_KINDS, ToolKind

_NAMES: dict[ToolKind, str] = {
    "read": "Read NotebookRead ReadFile read_file read_many_files view view_image cat open_file get_file_contents",
    "write": "Write Edit MultiEdit NotebookEdit write_file edit_file create_file delete_file move_file replace "
    "str_replace str_replace_editor str_replace_based_edit_tool insert apply_patch file_change delete move",
    "execute": "Bash BashOutput KillShell KillBash shell local_shell exec exec_command command_execution "
    "run_shell_command run_command run_terminal_cmd python code_execution code_interpreter",
    "search": "Glob Grep LS search_files search_file_content list_dir list_directory list_files find ripgrep",
    "fetch": "WebFetch WebSearch web_search google_web_search http_request browser",
    "other": "think",
}
_KINDS = {name.lower(): kind for kind, names in _NAMES.items() for name in (*names.split(), kind)}
_KINDS |= {name.replace("_", ""): kind for name, kind in _KINDS.items()}


def tool_kind(name: str, told: Any = None) -> ToolKind:
    """The kind: what the transcript tells, when it is one of ours or of the Agent Client Protocol's, else by the
    tool's name, whatever its case; `other` for names that nobody knows, those of MCP servers included."""
    if isinstance(told, str):
        for kind in TOOL_KINDS:
            if told == kind:
                return kind
        if told in _KINDS:
            return _KINDS[told]
    return _KINDS.get(name.lower(), "other")
