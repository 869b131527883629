"""What a run was like, as one HTML file that needs nothing else."""

from __future__ import annotations

__all__: list[str] = []
