"""trainbudget: a live budget for training runs."""
