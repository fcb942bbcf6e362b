"""The live half: threads and probes that turn a running process into facts. None of it runs on import."""
