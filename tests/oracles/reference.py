"""All algorithms once more, in NumPy and float64, client by client, straight from the papers' formulas.

Nothing here knows torch or the library. A model is one flat vector; the network is x -> W2 tanh(W1 x + b1) + b2 under
softmax cross-entropy, with gradients written by hand. Everything random (batch orders, cohorts, FedFomo's draws) comes
in as plain arrays. Every algorithm is a generator that yields, after each round, a `Round`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Task:
    x: np.ndarray  # (n, d)
    y: np.ndarray  # (n,)
    rows: dict[str, list[np.ndarray]]  # split -> client -> row numbers
    orders: dict[tuple[str, str, int, int, int], np.ndarray]  # (purpose, split, round, client, epoch) -> row numbers
    cohorts: list[list[int]]  # of rounds 1, 2, ...
    draws: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]  # (round, client) -> FedFomo's
    initial: np.ndarray
    starts: list[np.ndarray]  # IFCA's, the first of which is `initial`
    hidden: int
    classes: int
    lr: float
    batch: int
    epochs: int
    noise: dict[tuple[int, int, int, int], np.ndarray] = field(
        default_factory=dict
    )  # FedCP's: round, client, epoch, step

    @property
    def n(self) -> int:
        return len(self.rows["train"])

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for rows in self.rows["train"]]


class Round(NamedTuple):
    personal: list[np.ndarray]  # what everybody would be tested with now
    trained: list[np.ndarray]  # what the cohort was tested with after training
    weights: np.ndarray  # (m, m)
    loss: Callable[..., float] | None = None  # (task, model, rows) of another network than the one above


def unpack(task, v):
    d, h, c = task.x.shape[1], task.hidden, task.classes
    parts = np.split(v, np.cumsum([h * d, h, c * h]))
    return parts[0].reshape(h, d), parts[1], parts[2].reshape(c, h), parts[3]


def head_slice(task):
    return slice(task.hidden * (task.x.shape[1] + 1), None)


def forward(task, v, rows, shift=0.0):
    w1, b1, w2, b2 = unpack(task, v)
    z = np.tanh(task.x[rows] @ w1.T + b1)
    logits = z @ w2.T + b2 + shift
    shifted = logits - logits.max(1, keepdims=True)
    p = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    return z, logits, p


def loss(task, v, rows):
    _, _, p = forward(task, v, rows)
    return -np.mean(np.log(p[np.arange(len(rows)), task.y[rows]]))


def grad(task, v, rows, shift=0.0):
    w2 = unpack(task, v)[2]
    z, _, p = forward(task, v, rows, shift)
    error = p.copy()
    error[np.arange(len(rows)), task.y[rows]] -= 1
    error /= len(rows)
    back = (error @ w2) * (1 - z**2)
    return np.concatenate([(back.T @ task.x[rows]).ravel(), back.sum(0), (error.T @ z).ravel(), error.sum(0)])


def batches(task, client, rnd, purpose="train", split="train", epochs=None, width=None):
    for epoch in range(task.epochs if epochs is None else epochs):
        order = task.orders[purpose, split, rnd, client, epoch]
        for start in range(0, len(order), width or task.batch):
            yield order[start : start + (width or task.batch)]


def sgd(task, v, client, rnd, purpose="train", epochs=None, lr=None, extra=lambda v: 0.0):
    for rows in batches(task, client, rnd, purpose, epochs=epochs):
        v = v - (task.lr if lr is None else lr) * (grad(task, v, rows) + extra(v))
    return v


def weighted_mean(task, cohort, models):
    total = sum(task.sizes[i] for i in cohort)
    mean = sum(task.sizes[i] / total * model for i, model in zip(cohort, models, strict=True))
    return mean, np.array([[task.sizes[j] / total for j in cohort]] * len(cohort))


def local(task):
    models = [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        for i in cohort:
            models[i] = sgd(task, models[i], i, rnd)
        yield Round(list(models), [models[i] for i in cohort], np.eye(len(cohort)))


def fedavg(task):
    w = task.initial
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, w, i, rnd) for i in cohort]
        w, weights = weighted_mean(task, cohort, trained)
        yield Round([w] * task.n, trained, weights)


def fedprox(task, mu):
    w = task.initial
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, w, i, rnd, extra=lambda v, w=w: mu * (v - w)) for i in cohort]
        w, weights = weighted_mean(task, cohort, trained)
        yield Round([w] * task.n, trained, weights)


def fedavgm(task, beta, nesterov):
    w, v = task.initial, 0 * task.initial
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, w, i, rnd) for i in cohort]
        mean, weights = weighted_mean(task, cohort, trained)
        delta = w - mean
        v = beta * v + delta
        w = w - (delta + beta * v if nesterov else v)
        yield Round([w] * task.n, trained, weights)


def fedavg_ft(task, tune_epochs=None):
    w = task.initial
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, w, i, rnd) for i in cohort]
        w, weights = weighted_mean(task, cohort, trained)
        yield Round([sgd(task, w, i, rnd + 1, epochs=tune_epochs) for i in range(task.n)], trained, weights)


def sfl(task, hops, server_alpha, top_labels, reg):
    labels = []
    for rows in task.rows["train"]:
        counts = np.bincount(task.y[rows], minlength=task.classes)
        ranked = sorted(range(task.classes), key=lambda c: (-counts[c], c))
        labels.append({c for c in ranked[:top_labels] if counts[c] > 0})
    graph = np.array([[1.0 if i == j or a & b else 0.0 for j, b in enumerate(labels)] for i, a in enumerate(labels)])
    graph /= graph.sum(1, keepdims=True)
    w, u = task.initial, np.array([task.initial] * task.n)
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [
            sgd(task, w, i, rnd, extra=lambda v, w=w, i=i, u=u: reg * (v - w) + reg * (v - u[i])) for i in cohort
        ]
        own = u.copy()
        own[cohort] = trained
        spread = own
        for _ in range(hops):
            spread = graph @ spread
        u = server_alpha * spread + (1 - server_alpha) * own
        w = u.mean(0)
        power = np.linalg.matrix_power(graph, hops) * server_alpha + (1 - server_alpha) * np.eye(task.n)
        yield Round(list(u), trained, power[np.ix_(cohort, cohort)])


def perfedavg(task, variant, inner, meta, delta, adapt_steps=None):
    w = task.initial
    parts = 2 if variant == "fo" else 3
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = []
        for i in cohort:
            v = w
            for rows in batches(task, i, rnd, epochs=parts * task.epochs, width=parts * task.batch):
                if len(rows) < 2 * parts:
                    continue
                pieces = np.array_split(rows, parts)
                u = v - inner * grad(task, v, pieces[0])
                q = grad(task, u, pieces[1])
                if variant == "hf":
                    up, down = grad(task, v + delta * q, pieces[2]), grad(task, v - delta * q, pieces[2])
                    q = q - inner * (up - down) / (2 * delta)
                v = v - meta * q
            trained.append(v)
        w, weights = weighted_mean(task, cohort, trained)
        adapted = []
        for i in range(task.n):
            v = w
            for number, rows in enumerate(batches(task, i, rnd + 1, purpose="adapt", epochs=1)):
                if adapt_steps is None or number < adapt_steps:
                    v = v - inner * grad(task, v, rows)
            adapted.append(v)
        yield Round(adapted, trained, weights)


def pfedme(task, lam, inner_steps, beta, personal_lr):
    w, theta = task.initial, [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        own = []
        for i in cohort:
            v = t = w
            for rows in batches(task, i, rnd):
                for _ in range(inner_steps):
                    t = t - personal_lr * (grad(task, t, rows) + lam * (t - v))
                v = v - task.lr * lam * (v - t)
            own.append(v)
            theta[i] = t
        mean, weights = weighted_mean(task, cohort, own)
        w = (1 - beta) * w + beta * mean
        yield Round(list(theta), [theta[i] for i in cohort], weights)


def complete_linkage(similarity):
    groups = [[i] for i in range(len(similarity))]
    while len(groups) > 2:
        far = {
            (a, b): max(-similarity[i][j] for i in groups[a] for j in groups[b])
            for a in range(len(groups))
            for b in range(a + 1, len(groups))
        }
        a, b = min(far, key=far.get)
        groups[a] = groups[a] + groups.pop(b)
    return groups


def clusterfl(task, eps1, eps2, warmup):
    clusters, models, latest = [list(range(task.n))], [task.initial] * task.n, {}
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = [sgd(task, models[i], i, rnd) for i in cohort]
        latest |= {i: v - models[i] for i, v in zip(cohort, trained, strict=True)}
        after = []
        for members in clusters:
            here = [latest[i] for i in members if i in cohort]
            known = [i for i in members if i in latest]
            quiet = bool(here) and np.linalg.norm(np.mean(here, 0)) < eps1
            if quiet and max(map(np.linalg.norm, here)) > eps2 and len(known) > 2 and rnd > warmup:
                unit = [latest[i] / np.linalg.norm(latest[i]) for i in known]
                children = [[known[p] for p in group] for group in complete_linkage(np.array(unit) @ np.array(unit).T)]
                first = next(child for child in children if known[0] in child)
                second = next(child for child in children if known[0] not in child)
                larger = second if len(second) > len(first) else first
                larger += [i for i in members if i not in latest]
                after += [first, second]
            else:
                after.append(members)
        clusters = after
        for members in clusters:
            here = [latest[i] for i in members if i in cohort]
            for i in members:
                models[i] = models[i] + (np.mean(here, 0) if here else 0)
        of = {i: number for number, members in enumerate(clusters) for i in members}
        same = np.array([[of[i] == of[j] for j in cohort] for i in cohort], float)
        yield Round(list(models), trained, same / same.sum(1, keepdims=True))


def fedrod(task):
    w, own_head = task.initial, [task.initial[head_slice(task)]] * task.n
    head = head_slice(task)

    def both(v, p):
        v = v.copy()
        v[head] += p
        return v

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained, tested = [], []
        for i in cohort:
            counts = np.bincount(task.y[task.rows["train"][i]], minlength=task.classes)
            with np.errstate(divide="ignore"):
                prior = np.log(counts / counts.sum())
            v, p = w, own_head[i]
            for rows in batches(task, i, rnd):
                shared, own = grad(task, v, rows, prior), grad(task, both(v, p), rows)[head]
                v, p = v - task.lr * shared, p - task.lr * own
            own_head[i] = p
            trained.append(v)
            tested.append(both(v, p))
        w, weights = weighted_mean(task, cohort, trained)
        yield Round([both(w, own_head[i]) for i in range(task.n)], tested, weights)


def fedamp(task, alpha, sigma, lam, neighbours="cohort"):
    w, u, seen = [task.initial] * task.n, [task.initial] * task.n, set()
    for rnd, cohort in enumerate(task.cohorts, 1):
        for i in cohort:
            w[i] = sgd(task, w[i], i, rnd, extra=lambda v, i=i, u=u: lam / alpha * (v - u[i]))
        seen |= set(cohort)
        xi = np.zeros((task.n, task.n))
        for i in range(task.n):
            for j in (set(cohort) if neighbours == "cohort" else seen) - {i}:
                xi[i, j] = alpha * np.exp(-np.sum((w[i] - w[j]) ** 2) / sigma) / sigma
            xi[i, i] = 1 - xi[i].sum()
        u = [sum(xi[i, j] * w[j] for j in range(task.n)) for i in range(task.n)]
        yield Round(list(w), [w[i] for i in cohort], xi[np.ix_(cohort, cohort)])


def fedfomo(task, models, epsilon, decay, fallback):
    own, base = [task.initial] * task.n, [task.initial] * task.n
    uploads, affinity = {}, np.zeros((task.n, task.n))

    def choose(i, rnd):
        ids = list(uploads)
        slots = min(models, max(len(ids) - 1, 0))
        ties, order, chance = task.draws[rnd, i]
        best = sorted((p for p in range(len(ids)) if ids[p] != i), key=lambda p: (-affinity[i, ids[p]], ties[p]))
        free = sorted((p for p in range(len(ids)) if ids[p] != i), key=lambda p: order[p])
        picks = []
        for slot in range(slots):
            pick = (free if chance[slot] < max(0.0, epsilon - decay * (rnd - 1)) else best)[0]
            best.remove(pick)
            free.remove(pick)
            picks.append(ids[pick])
        return picks

    def mixture(i, rnd):
        picks = choose(i, rnd)
        candidates = [uploads[n] for n in picks] + [own[i]]
        rows, raw = task.rows["validation"][i], []
        for candidate in candidates:
            distance = np.linalg.norm(candidate - base[i])
            raw.append((loss(task, base[i], rows) - loss(task, candidate, rows)) / distance if distance else 0.0)
        positive = np.maximum(raw, 0)
        if positive.sum() == 0:
            positive = np.array([0.0] * len(picks) + [1.0])
            mixed = own[i] if fallback == "own" else base[i]
            shares = positive if fallback == "own" else 0 * positive
        else:
            shares = positive / positive.sum()
            mixed = base[i] + sum(s * (c - base[i]) for s, c in zip(shares, candidates, strict=True))
        return mixed, picks, raw, shares

    for rnd, cohort in enumerate(task.cohorts, 1):
        new, weights = {}, np.zeros((len(cohort), task.n))
        changed = affinity.copy()
        for row, i in enumerate(cohort):
            mixed, picks, raw, shares = mixture(i, rnd)
            for n, r, s in zip([*picks, i], raw, shares, strict=True):
                changed[i, n] += r if n != i else 0
                weights[row, n] = s
            new[i] = (mixed, sgd(task, mixed, i, rnd))
        affinity = changed
        for i, (mixed, model) in new.items():
            base[i], own[i] = mixed, model
        uploads = {i: model for i, (_, model) in new.items()}
        yield Round([mixture(i, rnd + 1)[0] for i in range(task.n)], [own[i] for i in cohort], weights[:, cohort])


def l2c(task, mixing_lr, decay, mixing_steps):
    start, own = [task.initial] * task.n, [task.initial] * task.n
    adam = [dict.fromkeys(range(task.n), (0.0, 0.0, 0.0, 0)) for _ in range(task.n)]  # logit, first, second, steps
    updates = {}

    def collaborate(i, rnd):
        state, heard = dict(adam[i]), sorted({*updates, i})
        delta = {j: updates.get(j, start[j] - own[j]) for j in heard}
        if not updates:
            return own[i], state, {i: 1.0}

        def weights():
            e = np.exp([state[j][0] for j in heard])
            return dict(zip(heard, e / e.sum(), strict=True))

        def mixed():
            return start[i] - sum(share * delta[j] for j, share in weights().items())

        for _ in range(mixing_steps):
            omega, g = weights(), grad(task, mixed(), task.rows["validation"][i])
            slope = {j: -g @ delta[j] for j in heard}
            mean = sum(omega[j] * slope[j] for j in heard)
            for j in heard:
                a, first, second, steps = state[j]
                d = omega[j] * (slope[j] - mean) + decay * a
                first, second, steps = 0.9 * first + 0.1 * d, 0.999 * second + 0.001 * d * d, steps + 1
                step = first / (1 - 0.9**steps) / (np.sqrt(second / (1 - 0.999**steps)) + 1e-8)
                state[j] = (a - mixing_lr * step, first, second, steps)
        return mixed(), state, weights()

    for rnd, cohort in enumerate(task.cohorts, 1):
        weights, new = np.zeros((len(cohort), task.n)), {}
        for row, i in enumerate(cohort):
            begin, state, omega = collaborate(i, rnd)
            weights[row, list(omega)] = list(omega.values())
            new[i] = (begin, sgd(task, begin, i, rnd), state)
        for i, (begin, model, state) in new.items():
            start[i], own[i], adam[i] = begin, model, state
        updates = {i: start[i] - own[i] for i in cohort}
        yield Round([collaborate(i, rnd + 1)[0] for i in range(task.n)], [own[i] for i in cohort], weights[:, cohort])


def parameter_groups(task, granularity):
    h, d, c = task.hidden, task.x.shape[1], task.classes
    tensors = np.split(np.arange(len(task.initial)), np.cumsum([h * d, h, c * h]))
    layers = [np.concatenate(tensors[:2]), np.concatenate(tensors[2:])]
    return {"tensor": tensors, "layer": layers, "model": [np.concatenate(tensors)]}[granularity]


def feddwa(task, top_k, guidance, guidance_epochs, granularity="model"):
    w, last = [task.initial] * task.n, [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = {i: sgd(task, w[i], i, rnd) for i in cohort}
        guide = {
            "ahead": lambda i, v=trained, r=rnd: sgd(task, v[i], i, r, purpose="guidance", epochs=guidance_epochs),
            "last": lambda i, last=tuple(last): last[i],
            "current": lambda i, w=tuple(w): w[i],
            "extrapolate": lambda i, v=trained, w=tuple(w): 2 * v[i] - w[i],
        }[guidance]
        overall, new = np.zeros((len(cohort), len(cohort))), {i: np.zeros_like(task.initial) for i in cohort}
        for own in parameter_groups(task, granularity):
            for row, i in enumerate(cohort):
                inverse = np.array([1 / np.sum((guide(i) - trained[j])[own] ** 2) for j in cohort])
                kept = np.argsort(-inverse, kind="stable")[:top_k]
                weights = np.zeros(len(cohort))
                weights[kept] = inverse[kept] / inverse[kept].sum()
                new[i][own] = sum(share * trained[j][own] for share, j in zip(weights, cohort, strict=True))
                overall[row] += weights * len(own) / len(task.initial)
        for i in cohort:
            w[i] = new[i]
        for i in cohort:
            last[i] = trained[i]
        yield Round(list(w), list(trained.values()), overall)


def feddwa_plus(task, power, average, granularity, prior, freeze=0):
    groups = parameter_groups(task, granularity)
    logs = [_log_frequencies(task, i, prior) for i in range(task.n)]
    agreed_update = [np.zeros_like(task.initial)] * task.n
    w = [task.initial] * task.n
    agreed = [[[[] for _ in range(task.n)] for _ in range(task.n)] for _ in groups]  # group, i, j -> (count, cosine)
    began = [{} for _ in range(task.n)]  # half -> the last update that began with it
    received = [[] for _ in range(task.n)]
    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = {}
        order = ["train", "second_half"] if rnd % 2 == 1 else ["second_half", "train"]
        for i in cohort:
            v = w[i]
            for half in order:
                for rows in batches(task, i, rnd, split=half):
                    v = v - task.lr * grad(task, v, rows, logs[i])
                if half == order[0]:
                    began[i][half] = v - w[i]
            trained[i] = v
            agreed_update[i] = _agreed_part(v - w[i], groups, [began[i].get(half, np.zeros_like(v)) for half in order])
            received[i].append(w[i] + agreed_update[i])
        new = [np.zeros_like(task.initial) for _ in range(task.n)]
        overall = np.zeros((len(cohort), len(cohort)))
        for g, part in enumerate(groups):
            for i in cohort:
                found = {}
                for j in cohort:
                    x, y = (trained[i] - w[i])[part], (trained[j] - w[j])[part]
                    if i == j:
                        x, y = (began[i].get(half, np.zeros_like(v))[part] for half in order)
                    length = np.linalg.norm(x) * np.linalg.norm(y)
                    found[j] = x @ y / length if length else 0.0
                counts = max(0.0, *(found[j] for j in cohort if j != i))
                for j in cohort if not freeze or rnd <= freeze else ():
                    agreed[g][i][j].append((counts, found[j]))
            for i in range(task.n):
                known = {i: 0.0}
                for j in {*cohort, i}:
                    if agreed[g][i][j]:
                        counts, cosines = np.array(agreed[g][i][j]).T
                        known[j] = max(np.average(cosines, weights=counts), 0.0) if counts.any() else 0.0
                known[i] = 2 / (1 + 1 / known[i]) if known[i] else 0.0
                known[i] = max(known.values())
                raised = {j: value**power for j, value in known.items()}
                raised = {j: value if j == i else value * task.n / len(cohort) for j, value in raised.items()}
                if sum(raised.values()) == 0:
                    raised[i] = 1.0
                shares = {j: value / sum(raised.values()) for j, value in raised.items()}
                new[i][part] = sum(share * trained.get(j, w[j])[part] for j, share in shares.items())
                if i in cohort:
                    overall[cohort.index(i)] += [shares.get(j, 0.0) * len(part) / len(task.initial) for j in cohort]
        w = new
        arrived = [model + more for model, more in zip(w, agreed_update, strict=True)]
        used = [_running_mean([*past, now], average) for past, now in zip(received, arrived, strict=True)]
        yield Round(
            [_with_bias(task, model, more) for model, more in zip(used, logs, strict=True)],
            [_with_bias(task, model, logs[i]) for i, model in trained.items()],
            overall,
        )


def _log_frequencies(task, i, prior):
    """Of the client's classes, with so many samples of even classes besides."""
    rows = np.concatenate([task.rows[half][i] for half in ("train", "second_half")])
    counts = np.bincount(task.y[rows], minlength=task.classes) + prior / task.classes
    return np.log(counts / counts.sum())


def _with_bias(task, v, more):
    v = v.copy()
    v[-task.classes :] += more  # the bias of the head stands last
    return v


def _agreed_part(update, groups, halves):
    """The update, each group of it shrunk to 2c / (1 + c) with c the cosine of the updates by two halves."""
    shrunk = np.zeros_like(update)
    for own in groups:
        x, y = (half[own] for half in halves)
        length = np.linalg.norm(x) * np.linalg.norm(y)
        c = max(x @ y / length, 0.0) if length else 0.0
        shrunk[own] = 2 * c / (1 + c) * update[own]
    return shrunk


def _running_mean(values, recent):
    """sum_t g_t prod_{u > t} (1 - g_u) value_t with g_t = 1 / (1 + recent (t - 1)): the running mean written out."""
    gains = [1 / (1 + recent * t) for t in range(len(values))]
    weights = [gain * np.prod([1 - later for later in gains[t + 1 :]]) for t, gain in enumerate(gains)]
    return sum(weight * value for weight, value in zip(weights, values, strict=True))
