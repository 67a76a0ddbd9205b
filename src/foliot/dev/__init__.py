"""Private PostgreSQL and NATS servers on loopback, for development and for tests."""
