"""The demo: a small language model on text that every Python has, with everything of trainbudget switched on."""
