"""Serve a folder of runs as web pages."""
