"""What is remembered of each source of facts, in bounded memory; one file per source."""
