"""Personal models beside a global one, and models of which a part is shared, in NumPy and float64.

As in `reference.py`, whose network and gradients these use, nothing here knows torch or the library.
"""

import itertools

import numpy as np

from tests.oracles.reference import Round, batches, forward, grad, head_slice, sgd, unpack, weighted_mean


def ditto(task, lam, epochs=None, lr=None):
    w, own = task.initial, [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        for i in cohort:
            own[i] = sgd(task, own[i], i, rnd, epochs=epochs, lr=lr, extra=lambda v, w=w: lam * (v - w))
        w, weights = weighted_mean(task, cohort, [sgd(task, w, i, rnd) for i in cohort])
        yield Round(list(own), [own[i] for i in cohort], weights)


def apfl(task, alpha, adaptive, alpha_lr):
    w, own, share = task.initial, [task.initial] * task.n, [alpha] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        shared, tested = [], []
        for i in cohort:
            s = w
            for number, rows in enumerate(batches(task, i, rnd)):
                v, a = own[i], share[i]
                g = grad(task, a * v + (1 - a) * s, rows)
                if adaptive == "step" or (adaptive == "round" and number == 0):
                    share[i] = min(max(a - alpha_lr * (v - s) @ g, 0.0), 1.0)
                own[i] = v - task.lr * a * g
                s = s - task.lr * grad(task, s, rows)
            shared.append(s)
            tested.append(share[i] * own[i] + (1 - share[i]) * s)
        w, weights = weighted_mean(task, cohort, shared)
        yield Round([a * v + (1 - a) * w for a, v in zip(share, own, strict=True)], tested, weights)


def l2gd(task, theta):
    x = [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, x[i], i, rnd) for i in cohort]
        for i, v in zip(cohort, trained, strict=True):
            x[i] = v + theta * (np.mean(trained, 0) - v)
        m = len(cohort)
        yield Round(list(x), trained, (1 - theta) * np.eye(m) + theta * np.ones((m, m)) / m)


def mmd_gradient(x, y):
    """Of MMD^2 by x (B, F): the bandwidth is a constant, the kernel a sum of five Gaussians."""
    both = np.concatenate([x, y])
    far = np.array([[np.sum((a - b) ** 2) for b in both] for a in both])
    width = (np.sum(far) / (len(both) * (len(both) - 1)) + 1e-8) / 4
    slope = sum(-np.exp(-far / (width * 2**j)) / (width * 2**j) for j in range(5))  # dk / dD
    gradient = np.zeros_like(x)
    for a in range(len(x)):
        for b in range(len(x)):
            gradient[a] += 4 * slope[a, b] * (x[a] - x[b])  # k(x_a, x_b) stands twice in the sum
            gradient[a] -= 4 * slope[a, len(x) + b] * (x[a] - y[b])  # so does k(x_a, y_b)
    return gradient / len(x) ** 2


def fedphp(task, lam, mu, horizon, transfer):
    w, private, count = task.initial, [task.initial] * task.n, [0] * task.n

    def taught(v, p, rows):
        z, _, found = forward(task, v, rows)
        if transfer == "mmd":
            pull = mmd_gradient(z, forward(task, p, rows)[0])
            back, errors = pull * (1 - z**2), np.zeros_like(found)
        else:
            cool = np.exp(forward(task, p, rows)[1] / 4)
            errors = (found - cool / cool.sum(1, keepdims=True)) / len(rows)
            back = (errors @ unpack(task, v)[2]) * (1 - z**2)
        parts = [(back.T @ task.x[rows]).ravel(), back.sum(0), (errors.T @ z).ravel(), errors.sum(0)]
        return (1 - lam) * grad(task, v, rows) + lam * np.concatenate(parts)

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = []
        for i in cohort:
            v = w
            for rows in batches(task, i, rnd):
                v = v - task.lr * taught(v, private[i], rows)
            trained.append(v)
            past = min(mu * count[i] / horizon, mu)
            private[i] = past * private[i] + (1 - past) * v
            count[i] += 1
        w, weights = weighted_mean(task, cohort, trained)
        yield Round(list(private), [private[i] for i in cohort], weights)


def head_mask(task):
    mask = np.zeros(len(task.initial), bool)
    mask[head_slice(task)] = True
    return mask


def partly(task, private):
    """One pass over both parts, of which one is averaged; private: mask (d,) of the other."""
    w, own = task.initial, [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, np.where(private, own[i], w), i, rnd) for i in cohort]
        for i, v in zip(cohort, trained, strict=True):
            own[i] = v
        w, weights = weighted_mean(task, cohort, trained)
        yield Round([np.where(private, v, w) for v in own], trained, weights)


def fedper(task):
    yield from partly(task, head_mask(task))


def lgfedavg(task):
    yield from partly(task, ~head_mask(task))


def moved(task, v, i, rnd, mask, purpose="train", epochs=None, lr=None):
    """SGD on the parameters of a mask alone."""
    for rows in batches(task, i, rnd, purpose, epochs=epochs):
        v = v - (task.lr if lr is None else lr) * mask * grad(task, v, rows)
    return v


def fedrep(task, head_epochs, body_epochs=None, head_lr=None, tune_epochs=0):
    head = head_mask(task)
    w, own = task.initial, [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = []
        for i in cohort:
            v = moved(task, np.where(head, own[i], w), i, rnd, head, "head", head_epochs, head_lr)
            v = moved(task, v, i, rnd, ~head, epochs=body_epochs)
            own[i] = v
            trained.append(v)
        w, weights = weighted_mean(task, cohort, trained)
        ready = [np.where(head, v, w) for v in own]
        tuned = [moved(task, v, i, rnd + 1, head, "tune", tune_epochs, head_lr) for i, v in enumerate(ready)]
        yield Round(tuned, trained, weights)


def fedbabu(task, tune_epochs, tune_lr=None):
    head = head_mask(task)
    w = task.initial
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [moved(task, w, i, rnd, ~head) for i in cohort]
        w, weights = weighted_mean(task, cohort, trained)
        tuned = [sgd(task, w, i, rnd + 1, purpose="tune", epochs=tune_epochs, lr=tune_lr) for i in range(task.n)]
        yield Round(tuned, trained, weights)


def feddbe(task, lam, mu):
    w, offset = task.initial, [np.zeros(task.hidden)] * task.n
    common = None

    def with_offset(v, i):
        found = v.copy()
        found[len(v) - task.classes :] += unpack(task, v)[2] @ offset[i]
        return found

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained, means = [], []
        for i in cohort:
            v, r = w, np.zeros(task.hidden)
            for rows in batches(task, i, rnd):
                w2, m = unpack(task, v)[2], offset[i]
                z, _, p = forward(task, v, rows, shift=w2 @ m)
                r = (1 - mu) * r + mu * z.mean(0)
                error = p.copy()
                error[np.arange(len(rows)), task.y[rows]] -= 1
                error /= len(rows)
                pull = 0.0 if common is None else lam * (r - common) * mu / len(rows)
                back = (error @ w2 + pull) * (1 - z**2)
                parts = [(back.T @ task.x[rows]).ravel(), back.sum(0), (error.T @ (z + m)).ravel(), error.sum(0)]
                v = v - task.lr * np.concatenate(parts)
                if common is not None:
                    offset[i] = m - task.lr * error.sum(0) @ w2
            trained.append(v)
            means.append(r)
        w, weights = weighted_mean(task, cohort, trained)
        tested = [with_offset(v, i) for v, i in zip(trained, cohort, strict=True)]
        if common is None:
            common = weights[0] @ np.array(means)
        yield Round([with_offset(w, i) for i in range(task.n)], tested, weights)


def on_simplex(form):
    """argmin over the simplex of a^T Q a, by trying every set of positive entries."""
    best, found, n = np.inf, None, len(form)
    for size in range(1, n + 1):
        for chosen in map(list, itertools.combinations(range(n), size)):
            x = np.linalg.solve(form[np.ix_(chosen, chosen)], np.ones(size))  # Q a is the same number in all of them
            a = np.zeros(n)
            a[chosen] = x / x.sum()
            if (a >= 0).all() and a @ form @ a < best:
                best, found = a @ form @ a, a
    return found


def fedpac(task, lam, head_epochs, head_lr):
    head, classes = head_mask(task), range(task.classes)
    phi, theta, common = task.initial, [task.initial] * task.n, {}

    def features(v, i):
        """Class -> features of client i's samples of it."""
        rows = task.rows["train"][i]
        z = forward(task, v, rows)[0]
        return {c: z[task.y[rows] == c] for c in classes if (task.y[rows] == c).any()}

    def aligned(v, rows, target):
        z = forward(task, v, rows)[0]
        pull = 2 * lam * (z - np.array([target[y] for y in task.y[rows]])) / z.size
        back = pull * (1 - z**2)
        zeros = np.zeros(task.classes * (task.hidden + 1))
        return grad(task, v, rows) + np.concatenate([(back.T @ task.x[rows]).ravel(), back.sum(0), zeros])

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained, means, variances, found = [], [], [], []
        for i in cohort:
            v, n = np.where(head, theta[i], phi), task.sizes[i]
            of = features(v, i)
            samples = [np.outer(np.eye(task.classes)[c], z) for c, own in of.items() for z in own]
            means.append(sum(samples) / n)
            variances.append(sum(np.sum((h - means[-1]) ** 2) for h in samples) / n / n)
            v = moved(task, v, i, rnd, head, "head", head_epochs, head_lr)
            target = {c: common.get(c, own.mean(0)) for c, own in of.items()}
            for rows in batches(task, i, rnd):
                slope = aligned(v, rows, target) if common else grad(task, v, rows)
                v = v - task.lr * ~head * slope
            trained.append(v)
            found.append(features(v, i))
        phi, _ = weighted_mean(task, cohort, trained)
        for c in classes:
            own = [of[c] for of in found if c in of]
            if own:
                common[c] = np.concatenate(own).mean(0)
        weights = []
        for h in means:
            far = np.array([(other - h).ravel() for other in means])
            a = on_simplex(far @ far.T + np.diag(variances))
            a[a < 1e-3] = 0
            weights.append(a / a.sum())
        for i, a in zip(cohort, weights, strict=True):
            theta[i] = sum(share * v for share, v in zip(a, trained, strict=True))
        yield Round([np.where(head, own, phi) for own in theta], trained, np.array(weights))
