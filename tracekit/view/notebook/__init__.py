"""tracekit in notebooks: ``%load_ext tracekit``, then ``%%tracekit`` on a cell records it and shows its timeline."""

from __future__ import annotations

from tracekit.view.notebook.magic import load_ipython_extension, unload_ipython_extension

__all__ = ["load_ipython_extension", "unload_ipython_extension"]
