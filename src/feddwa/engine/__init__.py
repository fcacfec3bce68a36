"""Stacks of clients: keyed randomness, the vectorised trainer, its sequential twin, evaluation."""

from feddwa.engine import keys
from feddwa.engine.engine import Engine, Settings
from feddwa.engine.evaluate import Scores, evaluate, map_scores
from feddwa.engine.sequential import SequentialTrainer, evaluate_one_by_one
from feddwa.engine.trainer import Trainer
from feddwa.engine.types import Cohort, Memory, Message, Model, Parts, ServerState, Stack, StepState

__all__ = [
    "Cohort",
    "Engine",
    "Memory",
    "Message",
    "Model",
    "Parts",
    "Scores",
    "SequentialTrainer",
    "ServerState",
    "Settings",
    "Stack",
    "StepState",
    "Trainer",
    "evaluate",
    "evaluate_one_by_one",
    "keys",
    "map_scores",
]
