"""Rows of clients: keyed randomness, the vectorised trainer, its sequential twin, evaluation."""

from feddwa.engine import keys
from feddwa.engine.evaluate import Scores, evaluate
from feddwa.engine.rows import Cohort, Row, Rows, State
from feddwa.engine.sequential import SequentialTrainer, evaluate_one_by_one
from feddwa.engine.trainer import Engine, Settings, Trainer

__all__ = [
    "Cohort",
    "Engine",
    "Row",
    "Rows",
    "Scores",
    "SequentialTrainer",
    "Settings",
    "State",
    "Trainer",
    "evaluate",
    "evaluate_one_by_one",
    "keys",
]
