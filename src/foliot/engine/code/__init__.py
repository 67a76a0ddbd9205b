"""Programs in the place of a model: what runs them, and how a conversation becomes the course of a program."""
