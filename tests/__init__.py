"""The tests of tracekit; a package, so that test modules can import ``tests.perfetto``."""
