"""The sync client, generated from the async one."""
