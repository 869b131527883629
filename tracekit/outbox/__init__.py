"""Delivery of finished files: packed, uploaded, or kept in the spool for ``tracekit upload``."""
