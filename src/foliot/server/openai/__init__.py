"""The API that clients of OpenAI speak, over agents and systems. Called by the server; it drives nothing itself."""
