"""A report on a run as one HTML file that loads nothing."""
