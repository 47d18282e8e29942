"""Statistics, tables and figures over the long tables that an experiment leaves in `results/`.

Works on pandas frames and knows nothing of training: `load` reads, `statistics` computes, `table`
and `summary` write, `plots` draws. Each function stands alone, so a notebook can call any of
them.
"""
