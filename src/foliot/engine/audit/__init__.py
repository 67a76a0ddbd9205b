"""The audit log of tool calls: entries, sinks, metering, completion."""
