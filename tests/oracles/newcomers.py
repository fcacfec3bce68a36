"""What held-out clients get from the final models of the others, in NumPy and float64, straight from the definitions.

task: of the newcomers' data (see `reference.Task`); i: the newcomer; models, sizes: of the clients that trained.
"""

import numpy as np

from tests.oracles.reference import loss, sgd


def mean(models, sizes):
    return sum(size / sum(sizes) * model for size, model in zip(sizes, models, strict=True))


def trained(task, start, i, rnd, epochs):
    return sgd(task, start, i, rnd, purpose="newcomer", epochs=epochs)


def alone(task, i, rnd, models, sizes, epochs):
    return trained(task, task.initial, i, rnd, epochs)


def fedavg(task, i, rnd, models, sizes, epochs):
    return trained(task, mean(models, sizes), i, rnd, epochs)


def fine_tuned(task, i, rnd, models, sizes, epochs):
    candidates = [mean(models, sizes), *models]
    fits = [loss(task, model, task.rows["train"][i]) for model in candidates]
    return trained(task, candidates[int(np.argmin(fits))], i, rnd, epochs)


def feddwa(task, i, rnd, models, sizes, epochs, top_k=5):
    if not epochs:
        return fine_tuned(task, i, rnd, models, sizes, 0)
    ahead = max(1, epochs // 2)
    guidance = sgd(task, mean(models, sizes), i, rnd, purpose="guidance", epochs=ahead)
    inverse = np.array([1 / np.sum((guidance - model) ** 2) for model in models])
    kept = np.argsort(-inverse, kind="stable")[:top_k]
    mixed = sum(inverse[j] / inverse[kept].sum() * models[j] for j in kept)
    return trained(task, mixed, i, rnd, epochs - ahead)
