"""Looking at a trace: in Perfetto's UI in a browser, and through Perfetto's SQL."""
