"""Finished files on their way to where they belong: packed, uploaded, or kept in the spool for ``tracekit upload``."""
