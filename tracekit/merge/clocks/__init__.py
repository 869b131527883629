"""Which clock places each input on the merged timeline: what ties clocks together, and how far apart they are."""
