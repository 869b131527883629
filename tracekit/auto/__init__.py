"""Record unmodified training scripts: the hooks of ``tracekit run`` and ``TRACEKIT_AUTO=1``."""
