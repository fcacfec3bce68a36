"""The methods with one global model that are not in the paper, like `reference.py`: NumPy alone, client by client."""

import numpy as np

from tests.oracles.reference import Round, batches, grad, sgd, weighted_mean


def scaffold(task, server_lr, option):
    w, c = task.initial, 0 * task.initial
    own = [c] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained, moved = [], []
        for i in cohort:
            v, seen = w, []
            for rows in batches(task, i, rnd):
                seen.append(grad(task, v, rows))
                v = v - task.lr * (seen[-1] + c - own[i])
            trained.append(v)
            # the mean gradient along the way, as recorded: what option II works out of w - v
            new = np.mean(seen, 0) if option == "II" else grad(task, w, task.rows["train"][i])
            moved.append(new - own[i])
            own[i] = new
        w = w + server_lr * (sum(trained) / len(cohort) - w)
        c = c + sum(moved) / task.n
        yield Round([w] * task.n, trained, np.full((len(cohort),) * 2, 1 / len(cohort)))


def feddyn(task, alpha):
    w, h = task.initial, 0 * task.initial
    g = [h] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, w, i, rnd, extra=lambda v, w=w, old=g[i]: -old + alpha * (v - w)) for i in cohort]
        for i, v in zip(cohort, trained, strict=True):
            g[i] = g[i] - alpha * (v - w)
        h = h - alpha / task.n * sum(v - w for v in trained)
        w = sum(trained) / len(cohort) - h / alpha
        yield Round([w] * task.n, trained, np.full((len(cohort),) * 2, 1 / len(cohort)))


def fednova(task):
    w = task.initial
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained, steps = [], []
        for i in cohort:
            trained.append(sgd(task, w, i, rnd))
            steps.append(len(list(batches(task, i, rnd))))
        sizes = [task.sizes[i] for i in cohort]
        share = [size / sum(sizes) for size in sizes]
        tau = sum(p * a for p, a in zip(share, steps, strict=True))
        weights = [tau * p / a for p, a in zip(share, steps, strict=True)]
        w = w + tau * sum(p * (v - w) / a for p, v, a in zip(share, trained, steps, strict=True))
        yield Round([w] * task.n, trained, np.array([weights] * len(cohort)))


def fedopt(task, kind, server_lr, beta1, tau, beta2=None):
    w, m = task.initial, 0 * task.initial
    v = np.full_like(w, tau**2)
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, w, i, rnd) for i in cohort]
        mean, weights = weighted_mean(task, cohort, trained)
        d = mean - w
        m = beta1 * m + (1 - beta1) * d
        if kind == "adagrad":
            v = v + d**2
        elif kind == "adam":
            v = beta2 * v + (1 - beta2) * d**2
        else:
            v = np.where(v > d**2, v - (1 - beta2) * d**2, v + (1 - beta2) * d**2)
        w = w + server_lr * m / (np.sqrt(v) + tau)
        yield Round([w] * task.n, trained, weights)
