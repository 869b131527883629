"""What a merge writes: the seam between rewritten events and file formats, and the formats."""
