"""Models as vectors: the arithmetic that several algorithms share."""

import torch
from torch import Tensor

from feddwa.engine.rows import Rows, count
from feddwa.ledger import book
from feddwa.mixing import WIDTH


def difference(a: Rows, b: Rows) -> Rows:
    """a - b."""
    return {name: value - b[name] for name, value in a.items()}


def add_scaled(rows: Rows, factors: Tensor, more: Rows) -> Rows:
    """Row i plus factors[i] times more's."""
    return {
        name: torch.addcmul(value, more[name], factors.to(value).reshape(-1, *[1] * (value.ndim - 1)))
        for name, value in rows.items()
    }


def scale(factors: Tensor, rows: Rows) -> Rows:
    """Row i times factors[i]."""
    return {name: factors.to(value).reshape(-1, *[1] * (value.ndim - 1)) * value for name, value in rows.items()}


def norms(rows: Rows) -> Tensor:
    """||row_i||: (m,) in float64, on the CPU."""
    parts = [
        torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1, dtype=torch.float64) for value in rows.values()
    ]
    return torch.stack(parts).square().sum(0).sqrt().cpu()


def dots(a: Rows, b: Rows) -> Tensor:
    """<a_i, b_i>: (m,) in float64, on the CPU."""
    book(count(a), 1, a)
    total = torch.zeros((), dtype=torch.float64)
    for name, value in a.items():
        x, y = (rows.reshape(len(rows), -1).split(WIDTH[value.device.type], dim=1) for rows in (value, b[name]))
        total = total + torch.stack([(u.double() * v).sum(1) for u, v in zip(x, y, strict=True)]).sum(0).cpu()
    return total


def inner_products(a: Rows, b: Rows) -> Tensor:
    """<a_i, b_j>: (m, n) in float64, on the CPU."""
    book(count(a), count(b), a)
    total = torch.zeros((), dtype=torch.float64)
    for name, value in a.items():
        x, y = (rows.reshape(len(rows), -1).split(WIDTH[value.device.type], dim=1) for rows in (value, b[name]))
        total = total + torch.stack([u.double() @ v.double().T for u, v in zip(x, y, strict=True)]).sum(0).cpu()
    return total
