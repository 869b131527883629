"""Tracekit inside the frameworks that people train with: one framework a module, imported only when it is used."""
