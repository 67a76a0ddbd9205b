"""Where audit records go besides the log: files, webhooks, OpenTelemetry, and what others add by entry point."""
