"""Taking out of a trace what names people, machines and files, so that it can be shown to others."""

from __future__ import annotations

from tracekit.anonymising.rewrite import AnonymousTrace, anonymise_traces

__all__ = ["AnonymousTrace", "anonymise_traces"]
