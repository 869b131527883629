"""The part of a run that a merge takes."""
