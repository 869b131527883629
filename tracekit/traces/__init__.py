"""Facts about traces that every tool shares, and the rules on their events."""
