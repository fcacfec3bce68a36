"""What runs came to, from the first line written to the last figure drawn.

runs           the run directory as it is written
recorder       the loop that runs rounds and writes each of them, simulated or federated
metrics        the lines of metrics.jsonl and clients.jsonl
content        record.json: what is known of a finished run; a line of a JSONL file of published results is the same
record         `Record`, a run as it is read back, and `Method`, the runs that differ by their seed alone
store          published results: a JSONL file per dataset, found by what was run
compare        means and confidence intervals over seeds, gains over Local, accuracy at equal cost
collaboration  what aggregation weights tell about pairs and groups of clients
findings       what went wrong
palette, plot  one look for all figures
"""
