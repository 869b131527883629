"""The first look at the inputs of a merge: identify each file by its head and its end."""
