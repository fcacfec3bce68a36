"""Results of runs, from the first line written to the last figure drawn.

runs           the run directory as it is written
recorder       the loop that runs and records rounds, simulated or federated
metrics        the lines of metrics.jsonl and clients.jsonl
content        record.json: the record of a finished run; lines of published JSONL files have the same format
record         `Record`, a run read back, and `Method`, the runs that differ only in their seed
store          published results: a JSONL file per dataset, indexed by settings
compare        means and confidence intervals over seeds, gains over Local, accuracy at equal cost
collaboration  statistics of aggregation weights over pairs and groups of clients
findings       failures and warnings
palette, plot  the common style of all figures
"""
