"""The tools that veRL's chat templates name."""

from __future__ import annotations

from typing import Any

from verl.tools.tool_registry import load_all_tools

from stapo_results.errors import BadInput, message_of


def schemas(tool_config_path: str | None, function_tool_path: str | None) -> list[dict[str, Any]]:
    """What veRL hands to a chat template as `tools`, of the two files of actor_rollout_ref.rollout.multi_turn.

    Raises:
        BadInput: veRL cannot read them, where its data set would only warn and count without them.
    """
    try:
        tools = load_all_tools(tool_config_path, function_tool_path)
    except Exception as e:  # a user's file may raise anything
        keys = "tool_config_path, function_tool_path"
        cure = f"correct actor_rollout_ref.rollout.multi_turn: {keys}"
        raise BadInput("the tools cannot be read", found=message_of(e), next_step=cure) from e
    return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]
