"""The paper's tables and figures, and those of docs/beyond.md: what they consist of, what they gave, and their pages.

grid, specs     tables and figures as grids of runs, read from TOML files
run, cells      train what is missing: cells of one kind as one stack, several stacks at once
reproduce       plan and run an experiment
summary         a cell, a column and the paper's numbers beside ours
tables, grids   text tables of the paper and of docs/beyond.md
figures         SVG files
verdict         does it reproduce
costs           traffic and FLOPs, counted without data
page            docs/reproduction.md and docs/beyond.md
command         `feddwa reproduce`
same_results    compare two folders of results cell by cell
"""
