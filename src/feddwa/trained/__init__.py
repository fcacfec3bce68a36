"""Trained models after their run: stored, exported, used on new samples, adapted to a newcomer."""
