"""The file formats of a merged trace, and the writing of its units."""
