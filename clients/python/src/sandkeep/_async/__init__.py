"""The async client. The sync one is generated from it."""
