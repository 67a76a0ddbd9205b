"""How processes hear each other: in one process, over PostgreSQL, over NATS JetStream."""
