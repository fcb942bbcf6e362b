"""The user's own script, run in a process of its own up to its training loop and caught there."""
