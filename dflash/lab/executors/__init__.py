"""Where cells run: in this process, in worker processes, on a Ray cluster or as Slurm jobs.

A job is plain data and leaves everything in the store, so every executor gives the same tables.
"""
