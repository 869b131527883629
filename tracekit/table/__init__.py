"""The event table: the events of traces as columns, in a private cache, asked in SQL."""
