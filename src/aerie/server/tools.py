"""Tools of a chat: what a request may offer, and what of it must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aerie.server.problems import ApiError

MOST_TOOLS = 128  # as OpenAI's
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Function(_Strict):
    """What can be called. Its arguments are held to `parameters` where a call must be made."""

    name: Name
    description: Annotated[str, Field(max_length=1 << 20)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function


class Named(_Strict):
    """A function by its name."""

    name: Name


class NamedTool(_Strict):
    """`tool_choice`: this one."""

    type: Literal["function"]
    function: Named


Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Refuse tools of one name, and a choice that no tool can meet."""
    names = [tool.function.name for tool in tools]
    for index, tool in enumerate(tools):
        kind = (tool.function.parameters or {}).get("type", "object")
        if kind != "object":
            place = f"tools[{index}].function.parameters.type"
            raise ApiError(400, f"{place} is {kind!r:.60}, must be 'object'", place)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiError(400, f"tools: two functions are called {twice!r}: rename one", "tools")
    if choice == "required" and not tools:
        message = "tool_choice is required and there are no tools: offer one"
        raise ApiError(400, message, "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        message = f"tool_choice: {choice.function.name!r} is not among the tools"
        raise ApiError(400, message, "tool_choice")
