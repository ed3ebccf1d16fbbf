"""Products of fp32 matrices whose digits are the same on every x86-64 machine, through the OpenBLAS that comes with numpy.

MKL gives the same digits everywhere only with its oldest kernels (`MKL_CBWR=COMPATIBLE`), which reached two fifths of its own
choice here. OpenBLAS takes the kernels of the processor that `OPENBLAS_CORETYPE` names, and the sizes of the blocks in which
they add do not follow the cache there. Measured on one thread of an AMD EPYC of 2022, GFLOP/s by rows x inputs x outputs:

    shape                        MKL, its own choice    MKL, compatible    OpenBLAS, Haswell
    128 x 96 x 96                         87                   35                  73
    128 x 384 x 96                        92                   36                  90
    2,048 x 576 x 1,536                   92                   36                 101

`install_products` gives torch these products for `aten::mm` and `aten::addmm`, below autograd. So every matrix product of a layer
goes through them: linear layers and GPT-2's Conv1D, the output layer, low-rank adapters, each forward and backward, in sampling,
scoring and training. Attention multiplies many small matrices at once (`aten::bmm`): there OpenBLAS gained nothing over MKL,
which keeps them.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@cache
def install_products() -> torch.library.Library:
    """Make this process multiply by numpy's OpenBLAS from now on. There is no way back: a process computes portably or not.

    Returns torch's registration, which counts as long as the object lives (the cache keeps it).
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch has no types of it
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verrid", category=UserWarning)  # which is the purpose
        library.impl("mm", multiply_matrices, "CPU")  # type: ignore[no-untyped-call]  # torch has no types of it
        library.impl("mm.out", multiply_into, "CPU")  # type: ignore[no-untyped-call]  # torch has no types of it
        library.impl("addmm", multiply_and_add, "CPU")  # type: ignore[no-untyped-call]  # torch has no types of it
    return library


def multiply_matrices(left: Float[Tensor, "M K"], right: Float[Tensor, "K N"]) -> Float[Tensor, "M N"]:
    """Compute the matrix product, as `torch.mm` gives it."""
    if left.dtype != torch.float32 or right.dtype != torch.float32:
        return _multiply_by_torch(left, right)
    product = torch.empty(left.shape[0], right.shape[1])
    np.matmul(_as_array(left), _as_array(right), out=product.numpy())
    return product


def multiply_into(left: Float[Tensor, "M K"], right: Float[Tensor, "K N"], *, out: Float[Tensor, "M N"]) -> Any:
    """Compute the matrix product, written into `out`, as `torch.mm(..., out=out)` does."""
    return out.copy_(multiply_matrices(left, right))


def multiply_and_add(
    added: Float[Tensor, "*B N"],
    left: Float[Tensor, "M K"],
    right: Float[Tensor, "K N"],
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Float[Tensor, "M N"]:
    """Compute beta * added + alpha * (left @ right), as `torch.addmm` gives it: a layer with a bias."""
    product = multiply_matrices(left, right)
    if alpha != 1:
        product *= alpha
    if beta == 0:  # as torch has it, where `added` may then hold anything, NaN too
        return product
    return product.add_(added.detach(), alpha=beta)


def _multiply_by_torch(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices of other precisions, which are not portable: by the batched product, which is still torch's own."""
    product: Tensor = torch.bmm(left[None], right[None])[0]
    return product


def _as_array(matrix: Float[Tensor, "M N"]) -> np.ndarray:
    """Return the same memory as numpy's array; a copy only where BLAS could not read it, as numpy would then add in another
    order."""
    (down, across) = matrix.stride()
    (rows, columns) = matrix.shape
    by_rows = across == 1 and down >= columns
    by_columns = down == 1 and across >= rows
    if not by_rows and not by_columns:
        matrix = matrix.contiguous()
    array: np.ndarray = matrix.detach().numpy()
    return array
