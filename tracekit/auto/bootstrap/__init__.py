"""The folder that ``tracekit run`` puts first on PYTHONPATH; Python imports its ``sitecustomize`` at the start."""
