"""Convolution of many clients as one matrix product each, of its kernels and of its patches written out."""

from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast.dispatch import Geometry, Wanted


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """(m, B, C, H, W), (m, O, C, kh, kw), (m, O) -> (m, B, O, H', W'), and the patches for the way back."""
    patches = _patches(x, weight, geometry)
    columns = patches.flatten(1, 3).flatten(2)  # (m, C kh kw, B L)
    out = weight.flatten(2) @ columns  # (m, O, B L)
    out = out if bias is None else out.add_(bias.unsqueeze(2))
    return out.unflatten(2, patches.shape[4:]).transpose(1, 2), columns


def _patches(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Every patch that the kernel sees, as a view (m, C, kh, kw, B, H', W') of the padded x (m, B, C, H, W)."""
    stride, padding, dilation = geometry
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    for axis in (0, 1):  # a dilated window is a wider one of which every dilation-th entry is taken
        reach = dilation[axis] * (weight.shape[axis - 2] - 1) + 1
        x = x.unfold(3 + axis, reach, stride[axis])[..., :: dilation[axis]]
    return x.permute(0, 2, 5, 6, 1, 3, 4)


def gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, columns: Tensor, geometry: Geometry, wanted: Wanted
) -> tuple[Tensor | None, ...]:
    """The gradients (m, B, ...) by one matrix product per client over its patches, the columns (m, C kh kw, B L)."""
    come = gradient.transpose(1, 2).flatten(2)  # (m, O, B L)
    to_x = to_weight = to_bias = None
    if wanted[1]:
        to_weight = _long_product(come, columns, gradient.shape[1]).reshape(weight.shape)
    if wanted[0]:
        spread = weight.flatten(2).transpose(1, 2) @ come  # (m, C kh kw, B L)
        spread = spread.unflatten(1, weight.shape[2:]).unflatten(4, (-1, *gradient.shape[3:]))
        to_x = _fold(spread, x, geometry)
    if wanted[2]:
        to_bias = come.sum(2)
    return to_x, to_weight, to_bias


def _long_product(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """a @ b^T for (m, O, n) and (m, K, n), n a multiple of the batch.

    A few clients' small products with long sums leave most of a GPU idle: the sums are cut into pieces, each a product.
    """
    pieces = max(count for count in range(1, batch + 1) if batch % count == 0 and (count == 1 or len(a) * count <= 100))
    if pieces == 1:
        return a @ b.transpose(1, 2)
    a, b = (value.unflatten(2, (pieces, -1)).transpose(1, 2) for value in (a, b))  # (m, pieces, ., n / pieces)
    return (a @ b.transpose(2, 3)).sum(1)


def _fold(spread: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """Add each place of the patches (m, C, kh, kw, B, H', W') to where it came from: the reverse of `_patches`."""
    stride, padding, dilation = geometry
    m, channels, *kernel, batch, out_height, out_width = spread.shape
    height, width = x.shape[3] + 2 * padding[0], x.shape[4] + 2 * padding[1]
    total = spread.new_zeros(m, channels, batch, height, width)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (out_height - 1) + 1, stride[0])
            columns = slice(left, left + stride[1] * (out_width - 1) + 1, stride[1])
            total[..., rows, columns].add_(spread[:, :, i, j])
    total = total[..., padding[0] : height - padding[0], padding[1] : width - padding[1]]
    return total.transpose(1, 2)  # (m, B, C, H, W)
