"""Methods that add layers to the head, in NumPy and float64, with gradients written by hand.

As in `reference.py`, nothing here knows torch or the library. The network is x -> z = tanh(W1 x + b1) and what a method
makes of z. A model is a dictionary of arrays; `flat` is its vector, in the order of the network's parameters.
"""

import numpy as np

from tests.oracles.reference import Round, batches, weighted_mean

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


def normed(a, gain, shift):
    """LayerNorm of relu(a) (..., F), and what its gradient needs."""
    r = np.maximum(a, 0)
    unit = (r - r.mean(-1, keepdims=True)) / np.sqrt(r.var(-1, keepdims=True) + EPS)
    return gain * unit + shift, unit


def normed_gradient(a, gain, unit, d):
    """By a, for the gradient d by the output."""
    r, d = np.maximum(a, 0), d * gain
    centred = d - d.mean(-1, keepdims=True) - unit * (d * unit).mean(-1, keepdims=True)
    return centred / np.sqrt(r.var(-1, keepdims=True) + EPS) * (a > 0)


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
        out[net], units[net] = normed(inner[net], v[f"{net}.gain"], v[f"{net}.shift"])
    return np.maximum((1 + out["gamma"]) * z + out["beta"], 0), out, units, inner


def route_gradient(v, z, q, df):
    """By z, and by the parameters of gamma and beta; df: by the route's output."""
    f, out, units, inner = route(v, z, q)
    dpre = df * (f > 0)
    outer = {"gamma": (dpre * z).sum(0), "beta": dpre.sum(0)}
    found = {}
    for net, d in outer.items():
        da = normed_gradient(inner[net], v[f"{net}.gain"], units[net], d)
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
