"""The pure core: facts in, ledger, findings and a report out. No clock, thread, I/O, logging, torch or framework in it."""
