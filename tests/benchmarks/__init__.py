"""Measure the cost of tracekit and of its peers in the same process. ``scripts/bench`` runs it.

Each module measures one thing and has a function ``rows(effort)`` that yields the rows of the table as they are measured.
"""
