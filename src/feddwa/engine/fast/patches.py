"""Convolution of many clients by im2col: patches are written to memory, and each client has one matrix product.

L = B H' W' is the number of output positions of a client's batch, K = C kh kw the number of entries of a patch.
"""

from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast.dispatch import Geometry, OutputMask

MAX_PRODUCTS = 100  # largest number of matrix products, over all clients, of a split-K product


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Convolution. x: (m, B, C, H, W); weight: (m, O, C, kh, kw); bias: (m, O).

    Returns the output (m, B, O, H', W') and the patches (m, K, L), which `conv_backward` needs again.
    """
    patches = _unfold(x, weight, geometry)  # (m, C, kh, kw, B, H', W')
    columns = patches.flatten(1, 3).flatten(2)  # (m, K, L)
    out = weight.flatten(2) @ columns  # (m, O, L)
    out = out if bias is None else out.add_(bias.unsqueeze(2))
    return out.unflatten(2, patches.shape[4:]).transpose(1, 2), columns  # (m, B, O, H', W'), (m, K, L)


def _unfold(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """All patches of the padded x (m, B, C, H, W) as a view (m, C, kh, kw, B, H', W')."""
    stride, padding, dilation = geometry
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    for axis in (0, 1):  # a dilated window is every dilation-th entry of a wider one
        extent = dilation[axis] * (weight.shape[axis - 2] - 1) + 1
        x = x.unfold(3 + axis, extent, stride[axis])[..., :: dilation[axis]]
    return x.permute(0, 2, 5, 6, 1, 3, 4)  # from (m, B, C, H', W', kh, kw)


def conv_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, columns: Tensor, geometry: Geometry, output_mask: OutputMask
) -> tuple[Tensor | None, ...]:
    """The gradients of `conv` with respect to x, weight and bias; None where `output_mask` is False.

    grad_output: (m, B, O, H', W'); x: (m, B, C, H, W); weight: (m, O, C, kh, kw); columns: (m, K, L).
    """
    grad = grad_output.transpose(1, 2).flatten(2)  # (m, O, L)
    grad_x = grad_weight = grad_bias = None
    if output_mask[1]:
        grad_weight = _split_k_product(grad, columns, grad_output.shape[1]).reshape(weight.shape)
    if output_mask[0]:
        grad_columns = weight.flatten(2).transpose(1, 2) @ grad  # (m, K, L)
        grad_columns = grad_columns.unflatten(1, weight.shape[2:])  # (m, C, kh, kw, L)
        grad_x = _fold(grad_columns.unflatten(4, (-1, *grad_output.shape[3:])), x, geometry)
    if output_mask[2]:
        grad_bias = grad.sum(2)
    return grad_x, grad_weight, grad_bias


def _split_k_product(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """a @ b^T for a (m, O, L) and b (m, K, L), where L is a multiple of `batch`: (m, O, K).

    Few small products with long sums leave most of a GPU idle. The sums are therefore split into parts of equal length,
    one product each, up to MAX_PRODUCTS products.
    """
    splits = max(n for n in range(1, batch + 1) if batch % n == 0 and (n == 1 or len(a) * n <= MAX_PRODUCTS))
    if splits == 1:
        return a @ b.transpose(1, 2)
    a, b = (value.unflatten(2, (splits, -1)).transpose(1, 2) for value in (a, b))  # (m, splits, O or K, L / splits)
    return (a @ b.transpose(2, 3)).sum(1)


def _fold(patches: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """Add every entry of the patches (m, C, kh, kw, B, H', W') to its pixel: the transpose of `_unfold`.

    Returns a tensor of x's shape, (m, B, C, H, W).
    """
    stride, padding, dilation = geometry
    m, channels, *kernel, batch, out_height, out_width = patches.shape
    height, width = x.shape[3] + 2 * padding[0], x.shape[4] + 2 * padding[1]
    total = patches.new_zeros(m, channels, batch, height, width)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (out_height - 1) + 1, stride[0])
            columns = slice(left, left + stride[1] * (out_width - 1) + 1, stride[1])
            total[..., rows, columns].add_(patches[:, :, i, j])
    total = total[..., padding[0] : height - padding[0], padding[1] : width - padding[1]]
    return total.transpose(1, 2)  # (m, B, C, H, W)
