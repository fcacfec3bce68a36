"""Methods that change the head or train features, in NumPy and float64, with gradients written by hand.

As in `reference.py`, nothing here knows torch or the library. Where a method adds layers, the network is its body
x -> z = tanh(W1 x + b1) and what it makes of z, and a model a dictionary of arrays; `flat` makes a vector of it.
"""

import numpy as np

from tests.oracles.reference import Round, batches, forward, grad, head_slice, sgd, weighted_mean

EPS = 1e-5  # of LayerNorm


def sizes_of(task, more):
    """Name -> shape: body and head, and what a method adds."""
    d, h, c = task.x.shape[1], task.hidden, task.classes
    return {"W1": (h, d), "b1": (h,), "W2": (c, h), "b2": (c,), **more}


def unflat(v, shapes):
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    assert cuts[-1] == len(v)
    return {name: part.reshape(shapes[name]) for name, part in zip(shapes, np.split(v, cuts[:-1]), strict=True)}


def flat(model):
    return np.concatenate([value.ravel() for value in model.values()])


def softmax(s):
    shifted = np.exp(s - s.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def cross_entropy(s, y):
    """Its mean, and its gradient by the scores s (B, C)."""
    p, hit = softmax(s), (np.arange(len(y)), y)
    error = p.copy()
    error[hit] -= 1
    return -np.mean(np.log(p[hit])), error / len(y)


def body(task, v, rows):
    return np.tanh(task.x[rows] @ v["W1"].T + v["b1"])


def body_gradient(task, rows, z, dz):
    back = dz * (1 - z**2)
    return {"W1": back.T @ task.x[rows], "b1": back.sum(0)}


def layer_norm(a, gain, shift):
    """Of a (..., F), and what its gradient needs."""
    unit = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + EPS)
    return gain * unit + shift, unit


def layer_norm_gradient(a, gain, unit, d):
    """By a, for the gradient d by the output."""
    d = d * gain
    centred = d - d.mean(-1, keepdims=True) - unit * (d * unit).mean(-1, keepdims=True)
    return centred / np.sqrt(a.var(-1, keepdims=True) + EPS)


# GPFL


def gpfl_shapes(task):
    h, c = task.hidden, task.classes
    nets = {
        f"{net}.{own}": shape for net in ("gamma", "beta")
        for own, shape in {"W": (h, h), "b": (h,), "gain": (h,), "shift": (h,)}.items()
    }  # fmt: skip
    return sizes_of(task, {"A": (c, h), "q": (h,), **nets})


def route(v, z, q):
    """The features on a route, and the outputs of gamma and beta."""
    out, units, inner = {}, {}, {}
    for net in ("gamma", "beta"):
        inner[net] = v[f"{net}.W"] @ q + v[f"{net}.b"]
        out[net], units[net] = layer_norm(np.maximum(inner[net], 0), v[f"{net}.gain"], v[f"{net}.shift"])
    return np.maximum((1 + out["gamma"]) * z + out["beta"], 0), out, units, inner


def route_gradient(v, z, q, df):
    """By z, and by the parameters of gamma and beta; df: by the route's output."""
    f, out, units, inner = route(v, z, q)
    dpre = df * (f > 0)
    outer = {"gamma": (dpre * z).sum(0), "beta": dpre.sum(0)}
    found = {}
    for net, d in outer.items():
        rectified = np.maximum(inner[net], 0)
        da = layer_norm_gradient(rectified, v[f"{net}.gain"], units[net], d) * (inner[net] > 0)
        own = {"W": np.outer(da, q), "b": da, "gain": d * units[net], "shift": d}
        found |= {f"{net}.{name}": value for name, value in own.items()}
    return dpre * (1 + out["gamma"]), found


def gpfl_gradient(task, v, rows, known, lam, mu):
    z, y, general = body(task, v, rows), task.y[rows], known.mean(0)
    personal, generic = route(v, z, v["q"])[0], route(v, z, general)[0]
    error = cross_entropy(personal @ v["W2"].T + v["b2"], y)[1]
    length, lengths = np.linalg.norm(generic, axis=1, keepdims=True), np.linalg.norm(v["A"], axis=1, keepdims=True)
    u, a = generic / np.maximum(length, 1e-12), v["A"] / lengths
    by_cosine = cross_entropy(u @ a.T, y)[1]
    du, da = by_cosine @ a, by_cosine.T @ u
    dgeneric = np.where(length > 0, (du - u * (u * du).sum(1, keepdims=True)) / np.maximum(length, 1e-300), 0)
    away = generic - known[y]
    dgeneric = dgeneric + lam * away / np.linalg.norm(away)
    first, one = route_gradient(v, z, v["q"], error @ v["W2"])
    second, two = route_gradient(v, z, general, dgeneric)
    found = body_gradient(task, rows, z, first + second)
    found |= {"W2": error.T @ personal, "b2": error.sum(0)}
    found |= {"A": (da - a * (a * da).sum(1, keepdims=True)) / lengths + mu * v["A"], "q": 0 * v["q"]}
    return found | {name: one[name] + two[name] + mu * v[name] for name in one}


def gpfl_loss(task, v, rows):
    v = unflat(v, gpfl_shapes(task))
    f = route(v, body(task, v, rows), v["q"])[0]
    return cross_entropy(f @ v["W2"].T + v["b2"], task.y[rows])[0]


def gpfl(task, lam, mu):
    shapes = gpfl_shapes(task)
    w = unflat(task.initial, shapes)
    head = [{name: w[name] for name in ("W2", "b2")} for _ in range(task.n)]
    shares = [np.bincount(task.y[rows], minlength=task.classes) / len(rows) for rows in task.rows["train"]]

    def ready(i):
        return {**w, **head[i], "q": shares[i] @ w["A"]}

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained = []
        for i in cohort:
            v = ready(i)
            for rows in batches(task, i, rnd):
                gradient = gpfl_gradient(task, v, rows, w["A"], lam, mu)
                v = {name: value - task.lr * gradient[name] for name, value in v.items()}
            head[i] = {name: v[name] for name in ("W2", "b2")}
            trained.append(flat(v))
        mean, weights = weighted_mean(task, cohort, trained)
        w = unflat(mean, shapes)
        yield Round([flat(ready(i)) for i in range(task.n)], trained, weights, gpfl_loss)


# FedAS, whose network has no layers besides


def class_means(task, v, own):
    """Class -> mean of the features of a client's samples of it."""
    z = forward(task, v, own)[0]
    return {c: z[task.y[own] == c].mean(0) for c in set(task.y[own])}


def alignment_gradient(task, v, rows, means):
    z, slope = forward(task, v, rows)[0], np.zeros((len(rows), task.hidden))
    for c in set(task.y[rows]):
        of_c = task.y[rows] == c
        slope[of_c] = 2 * (z[of_c] - means[c]) / task.hidden / of_c.sum()
    back = slope * (1 - z**2)
    gradient = np.zeros_like(v)
    gradient[: head_slice(task).start] = np.concatenate([(back.T @ task.x[rows]).ravel(), back.sum(0)])
    return gradient


def fedas(task, align_epochs, align_lr, by_fisher):
    head = np.arange(len(task.initial)) >= head_slice(task).start
    w, own = task.initial, [task.initial] * task.n
    for rnd, cohort in enumerate(task.cohorts, 1):
        taus = []
        for i in cohort:
            means = class_means(task, own[i], task.rows["train"][i])
            v = np.where(head, own[i], w)
            for rows in batches(task, i, rnd, "align", epochs=align_epochs):
                v = v - align_lr * alignment_gradient(task, v, rows, means)
            own[i] = sgd(task, v, i, rnd)
            taus.append(
                sum(np.sum(grad(task, own[i], rows) ** 2) for rows in batches(task, i, rnd, "fisher", epochs=1))
            )
        trained = [own[i] for i in cohort]
        shares = np.array(taus if by_fisher else [task.sizes[i] for i in cohort], float)
        shares /= shares.sum()
        w = shares @ np.array(trained)
        yield Round(list(own), trained, np.tile(shares, (len(cohort), 1)))


# FedCP


def fedcp_shapes(task):
    h, c = task.hidden, task.classes
    gate = {"gate.W": (2 * h, h), "gate.b": (2 * h,), "gate.gain": (2 * h,), "gate.shift": (2 * h,)}
    return sizes_of(task, {"context": (h,), "G": (c, h), "g": (c,), **gate})


def context_of(head):
    total = head["W2"].sum(0)
    return total / np.linalg.norm(total)


def gated(v, z, draws):
    """Outputs of both heads, and what their gradient needs; draws: (B, 2, F) uniform numbers, None in evaluation."""
    inner = (z * v["context"]) @ v["gate.W"].T + v["gate.b"]
    normed, unit = layer_norm(inner, v["gate.gain"], v["gate.shift"])
    pairs = np.maximum(normed, 0).reshape(len(z), 2, -1)
    if draws is not None:
        pairs = pairs - np.log(-np.log(draws + 2.0**-25))
    r = 1 / (1 + np.exp(pairs[:, 1] - pairs[:, 0]))
    return (r * z) @ v["W2"].T + v["b2"] + ((1 - r) * z) @ v["G"].T + v["g"], r, inner, unit, normed


def fixed_mmd_gradient(z, other):
    """Of MMD^2 with kernels of fixed widths, by z (B, F)."""

    def slope(a, b):
        far = np.sum((a - b) ** 2)
        return sum(-np.exp(-far / (2 * s)) / (2 * s) for s in (10, 15, 20, 50))

    gradient = np.zeros_like(z)
    for a in range(len(z)):
        for b in range(len(z)):
            gradient[a] += 4 * slope(z[a], z[b]) * (z[a] - z[b])
            gradient[a] -= 4 * slope(z[a], other[b]) * (z[a] - other[b])
    return gradient / len(z) ** 2


def fedcp_gradient(task, v, rows, draws, received, lam):
    z = body(task, v, rows)
    scores, r, inner, unit, normed = gated(v, z, draws)
    error = cross_entropy(scores, task.y[rows])[1]
    by_own, by_generic = error @ v["W2"], error @ v["G"]
    dr = z * (by_own - by_generic) * r * (1 - r)  # by the first of each pair, and its negative by the second
    dnormed = np.concatenate([dr, -dr], 1) * (normed > 0)
    dinner = layer_norm_gradient(inner, v["gate.gain"], unit, dnormed)
    dz = r * by_own + (1 - r) * by_generic + (dinner @ v["gate.W"]) * v["context"]
    if lam:
        dz = dz + lam * fixed_mmd_gradient(z, body(task, received, rows))
    gate = {"W": dinner.T @ (z * v["context"]), "b": dinner.sum(0), "gain": (dnormed * unit).sum(0)}
    found = body_gradient(task, rows, z, dz) | {"W2": error.T @ (r * z), "b2": error.sum(0)}
    found |= {f"gate.{name}": value for name, value in gate.items()} | {"gate.shift": dnormed.sum(0)}
    return found | {name: 0 * v[name] for name in ("context", "G", "g")}


def fedcp_loss(task, v, rows):
    v = unflat(v, fedcp_shapes(task))
    return cross_entropy(gated(v, body(task, v, rows), None)[0], task.y[rows])[0]


def fedcp(task, lam):
    shapes = fedcp_shapes(task)
    w = unflat(task.initial, shapes)
    head = [{name: w[name] for name in ("W2", "b2")} for _ in range(task.n)]

    def ready(i):
        return {**w, **head[i], "context": context_of(head[i])}

    for rnd, cohort in enumerate(task.cohorts, 1):
        trained, sent = [], []
        for i in cohort:
            v = ready(i)
            for number, rows in enumerate(batches(task, i, rnd)):
                epoch, step = divmod(number, -(-task.sizes[i] // task.batch))
                gradient = fedcp_gradient(task, v, rows, task.noise[rnd, i, epoch, step], w, lam)
                v = {name: value - task.lr * gradient[name] for name, value in v.items()}
            head[i] = {name: v[name] for name in ("W2", "b2")}
            trained.append(flat({**v, "context": context_of(head[i])}))
            sent.append(flat({**v, "G": (v["G"] + v["W2"]) / 2, "g": (v["g"] + v["b2"]) / 2}))
        mean, weights = weighted_mean(task, cohort, sent)
        w = unflat(mean, shapes)
        yield Round([flat(ready(i)) for i in range(task.n)], trained, weights, fedcp_loss)
