"""What tracekit costs, measured beside its peers in the same process: run it with ``scripts/bench``.

One idea a module; each has a function ``rows(effort)`` that yields the rows of the table as they are measured.
"""
