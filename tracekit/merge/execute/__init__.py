"""Run the tasks of a merge in this process and in workers."""
