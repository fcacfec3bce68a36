"""Methods by which clients choose partners or parts, like `reference.py`: NumPy alone, client by client."""

import itertools

import numpy as np

from tests.oracles.reference import Round, batches, forward, grad, head_slice, loss, sgd, weighted_mean


def quadratic_programme(alpha, cosines, shares):
    """argmin over the simplex of alpha ||x||^2 - <c + 2 alpha p, x>, by trying every set of positive entries."""
    best, found, n = np.inf, None, len(shares)
    goal = cosines + 2 * alpha * shares
    for size in range(1, n + 1):
        for chosen in map(list, itertools.combinations(range(n), size)):
            # stationary on this face: 2 alpha x_j - goal_j is the same for all of it, and sum x = 1
            level = (2 * alpha - goal[chosen].sum()) / size
            x = np.zeros(n)
            x[chosen] = (goal[chosen] + level) / (2 * alpha)
            value = alpha * x @ x - goal @ x
            if (x >= 0).all() and value < best:
                best, found = value, x
    return found


def pfedgraph(task, alpha, lam, since):
    w = [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):

        def leaning(v, r, lam=lam if rnd > 1 else 0.0):
            lengths = np.linalg.norm(v) * np.linalg.norm(r)
            return -lam * (r / lengths - (v @ r) / lengths * v / (v @ v))

        trained = [sgd(task, w[i], i, rnd, extra=lambda v, r=w[i]: leaning(v, r)) for i in cohort]
        origins = [task.initial if since == "initial" else w[i] for i in cohort]
        updates = [v - origin for v, origin in zip(trained, origins, strict=True)]
        units = [update / np.linalg.norm(update) for update in updates]
        shares = np.array([task.sizes[i] for i in cohort]) / sum(task.sizes[i] for i in cohort)
        weights = []
        for a in units:
            cosines = np.array([a @ b for b in units])
            weights.append(quadratic_programme(alpha, np.where(cosines > 0.9, 1.0, cosines), shares))
        for i, row in zip(cohort, weights, strict=True):
            w[i] = sum(share * v for share, v in zip(row, trained, strict=True))
        yield Round(list(w), trained, np.array(weights))


def ifca(task, clusters):
    centres = task.starts[:clusters]

    def best(i):
        losses = [loss(task, centre, task.rows["train"][i]) for centre in centres]
        return losses.index(min(losses))

    for rnd, cohort in enumerate(task.cohorts, 1):
        chosen = [best(i) for i in cohort]
        trained = [sgd(task, centres[j], i, rnd) for i, j in zip(cohort, chosen, strict=True)]
        weights = np.array(
            [
                [task.sizes[b] * (chosen[row] == j) for b, j in zip(cohort, chosen, strict=True)]
                for row in range(len(chosen))
            ],
            float,
        )
        weights /= weights.sum(1, keepdims=True)
        new = list(centres)
        for row, j in enumerate(chosen):
            new[j] = sum(share * v for share, v in zip(weights[row], trained, strict=True))
        centres = new
        yield Round([centres[best(i)] for i in range(task.n)], trained, weights)


def fedala(task, blend_lr, share, start_epochs, layers):
    part = head_slice(task) if layers == "head" else slice(None)
    w, own, count = task.initial, [task.initial] * task.n, [0] * task.n
    mask = [np.ones_like(task.initial[part]) for _ in range(task.n)]

    def start(i, rnd):
        theta, m, gap = w.copy(), mask[i], w[part] - own[i][part]
        theta[part] = own[i][part] + gap * m
        for epoch in range(0 if count[i] == 0 else start_epochs if count[i] == 1 else 1):
            seen = max(1, int(share * task.sizes[i]))
            seen -= seen > 1 and seen % task.batch == 1
            order = task.orders["ala", "train", rnd, i, epoch][:seen]
            for begin in range(0, len(order), task.batch):
                slope = grad(task, theta, order[begin : begin + task.batch])[part]
                m = np.clip(m - blend_lr * slope * gap, 0, 1)
                theta[part] = own[i][part] + gap * m
        return theta, m

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = []
        for i in cohort:
            theta, mask[i] = start(i, rnd)
            for rows in batches(task, i, rnd):
                theta = theta - task.lr * grad(task, theta, rows)
            trained.append(theta)
        for i, v in zip(cohort, trained, strict=True):
            own[i], count[i] = v, count[i] + 1
        w, weights = weighted_mean(task, cohort, trained)
        yield Round([start(i, rnd + 1)[0] for i in range(task.n)], trained, weights)


def fedem(task, components):
    """A model is its components one after another; behind them in what is evaluated, the client's shares."""
    theta, shares = np.split(task.initial, components), [np.full(components, 1 / components)] * task.n

    def chances(models, pi, rows):
        """(M, n) of the right classes, times shares."""
        found = [forward(task, v, rows)[2][np.arange(len(rows)), task.y[rows]] for v in models]
        return pi[:, None] * np.array(found)

    def mixed(task, v, rows):
        *models, pi = np.split(v, np.arange(1, components + 1) * len(theta[0]))
        return -np.mean(np.log(chances(models, pi, rows).sum(0)))

    def weighted(v, rows, q):
        """The gradient of (1 / B) sum_s q_s loss(v; s), sample by sample."""
        return sum(share * grad(task, v, rows[s : s + 1]) for s, share in enumerate(q)) / len(rows)

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = []
        for i in cohort:
            rows = task.rows["train"][i]
            q = chances(theta, shares[i], rows)
            q = dict(zip(rows.tolist(), (q / q.sum(0)).T, strict=True))  # sample -> (M,)
            shares[i] = np.mean(list(q.values()), 0)
            own = list(theta)
            for batch in batches(task, i, rnd):
                own = [v - task.lr * weighted(v, batch, [q[s][m] for s in batch.tolist()]) for m, v in enumerate(own)]
            trained.append(own)
        theta = [weighted_mean(task, cohort, [own[m] for own in trained])[0] for m in range(components)]
        weights = weighted_mean(task, cohort, [own[0] for own in trained])[1]
        tested = [np.concatenate([*own, shares[i]]) for i, own in zip(cohort, trained, strict=True)]
        yield Round([np.concatenate([*theta, pi]) for pi in shares], tested, weights, mixed)
