"""The workspace and the caller, for all tests of tools."""

from support.tool_context import call, ctx

__all__ = ["call", "ctx"]
