"""Statistics of aggregation weights P over pairs and groups of clients. P is (m, m): row i has client i's weights."""

from collections.abc import Sequence

import numpy as np

from feddwa.results.weights import Weights

TOP = 5  # number of partners, including the client itself
LATE = 10  # number of last rounds to average over


def top_partners(weights: np.ndarray, top: int = TOP) -> np.ndarray:
    """(m, m) ones where j is i itself or one of the others with the largest positive weights."""
    others = np.where(np.eye(len(weights), dtype=bool), -np.inf, weights)
    best = np.argsort(-others, axis=1, kind="stable")[:, : top - 1]
    chosen = np.eye(len(weights))
    np.put_along_axis(chosen, best, (np.take_along_axis(others, best, 1) > 0).astype(float), 1)
    np.fill_diagonal(chosen, 1)
    return chosen


def partner_share(weights: np.ndarray, groups: np.ndarray, top: int = TOP) -> float:
    """Mean over clients of the share of its top partners that belong to its group; groups: (m,).

    The client itself counts, and the others with the largest positive weights. Missing partners count as outside; in a
    group smaller than `top` only that many are expected.
    """
    inside = []
    for i, row in enumerate(weights):
        wanted = min(top, int((groups == groups[i]).sum()))
        others = np.where(np.arange(len(row)) == i, -np.inf, row)
        best = np.argsort(-others, kind="stable")[: wanted - 1]
        friends = (others[best] > 0) & (groups[best] == groups[i])
        inside.append((1 + friends.sum()) / wanted)
    return float(np.mean(inside))


def group_weight(weights: np.ndarray, groups: np.ndarray) -> float:
    """Mean over clients of the weight inside the client's group; groups: (m,)."""
    return float((weights * (groups[:, None] == groups)).sum(1).mean())


def between_groups(weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(G, G) mean weight that a client of one group gives another client of each group, over that of all pairs.

    groups: (m,), in ascending order along both axes. nan if there is no pair, as in a group of one.
    """
    member = (groups[:, None] == np.unique(groups)).astype(float)  # (m, G)
    other = 1 - np.eye(len(groups))
    size = np.abs(weights) * other
    pairs = member.T @ other @ member
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = member.T @ size @ member / pairs / (size.sum() / other.sum())
    return found


def rank_matrix(preferred: Sequence[Sequence[int]]) -> np.ndarray:
    """(m, m) ranks from lists of preferred clients: the earlier in client i's list, the larger; otherwise 0."""
    matrix = np.zeros((len(preferred), len(preferred)))
    for i, others in enumerate(preferred):
        matrix[i, others] = np.arange(len(others), 0, -1)
    return matrix


def flow(weights: Sequence[Weights], groups: np.ndarray | None) -> np.ndarray:
    """(rounds, 3) shares of all weight: on the client itself, on others of its group, on the rest.

    Without groups (N,) all others are "the rest". Uses absolute values, because FedAMP's weights may be negative.
    """
    shares = []
    for each in weights:
        size = np.abs(each.matrix)
        own = np.trace(size)
        kin = own if groups is None else size[groups[each.cohort][:, None] == groups[each.cohort]].sum()
        shares.append(np.array([own, kin - own, size.sum() - kin]) / max(size.sum(), 1e-12))
    return np.array(shares)


def affinity(weights: Sequence[Weights], clients: int) -> np.ndarray:
    """(N, N) mean weight of each pair of clients in the last rounds, in both directions; diagonal 0."""
    total, seen = np.zeros((clients, clients)), np.zeros((clients, clients))
    for each in weights[-LATE:]:
        pairs = np.ix_(each.cohort, each.cohort)
        total[pairs] += np.abs(each.matrix)
        seen[pairs] += 1
    mean = total / np.maximum(seen, 1)
    np.fill_diagonal(mean, 0)
    both: np.ndarray = (mean + mean.T) / 2
    return both


def clusters(weights: Sequence[Weights], clients: int) -> np.ndarray:
    """(N,) the cluster of each client: clients that weight the same others, without knowledge of the true groups.

    A client's profile is its affinity to all clients, scaled so that it and its closest partner have 1. Average linkage
    of the profiles' cosine distances, cut at one half.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if clients < 2:
        return np.zeros(clients, dtype=int)
    profile = affinity(weights, clients)
    profile /= np.maximum(profile.max(axis=1, keepdims=True), 1e-12)
    np.fill_diagonal(profile, 1)
    labels = fcluster(linkage(profile, "average", metric="cosine"), 0.5, "distance")
    first: dict[int, int] = {}  # clusters are numbered by their first client
    return np.array([first.setdefault(label, len(first)) for label in labels])
