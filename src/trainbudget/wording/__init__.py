"""Numbers, findings and reports as plain words: what logs, terminals and messages show."""
