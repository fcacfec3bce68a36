"""Fuzzing: random cases, each of which ends in a sound result or one clear line. `make fuzz` runs them for minutes.

A target says what a case is (`draw`) and what a sound answer to it is (`check`); one file per target. A case is drawn
from TARGET:SEED alone, so that name brings it back. `attempt.py` watches over one case, `campaign.py` over many in
several processes. What went wrong once stands in `findings.jsonl`, which the tests replay.
"""
