"""Foliot as an MCP server: agents, systems and governed tools. Called by the server and by `foliot mcp serve`."""
