"""How things look: tables, documents, runs and tasks as they are worked on."""
