"""Products through numpy's OpenBLAS are torch's, but for rounding, whatever the layout of the matrices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from harness.engines.embedded import products
from harness.engines.embedded.numerics import ENVIRONMENT, explain_unable


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


LAYOUTS = {
    "rows": lambda m: m.contiguous(),
    "columns": lambda m: m.T.contiguous().T,
    "every second": lambda m: torch.stack([m, m], 2).flatten(1)[:, ::2],
    "a part": lambda m: torch.cat([m, m], 1)[:, : m.shape[1]],
    "from the end": lambda m: torch.cat([m, m])[m.shape[0] :],
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 5), (7, 8, 1), (9, 96, 33)])
def test_any_layout_gives_the_product(shape, left, right):
    rows, inner, columns = shape
    one, other = LAYOUTS[left](matrix(rows, inner)), LAYOUTS[right](matrix(inner, columns, 1))
    exact = one.double() @ other.double()
    assert torch.allclose(products.multiply_matrices(one, other).double(), exact, atol=1e-5)
    out = torch.full((rows, columns), torch.nan)
    assert products.multiply_into(one, other, out=out) is out
    assert torch.allclose(out.double(), exact, atol=1e-5)


def test_a_repeated_row_is_multiplied_as_what_it_stands_for():
    row = matrix(1, 6)
    assert torch.equal(
        products.multiply_matrices(row.expand(4, 6), matrix(6, 3, 1)),
        products.multiply_matrices(row.repeat(4, 1), matrix(6, 3, 1)),
    )


@pytest.mark.parametrize("sizes", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_empty_matrices_have_a_product(sizes):
    rows, inner, columns = sizes
    product = products.multiply_matrices(torch.ones(rows, inner), torch.ones(inner, columns))
    assert torch.equal(product, torch.zeros(rows, columns))


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (2, 0.5), (0.5, -1)])
def test_what_is_added_counts_as_torch_counts_it(beta, alpha):
    bias, left, right = matrix(1, 5, 2)[0], matrix(3, 4), matrix(4, 5, 1)
    if beta == 0:
        bias[:] = torch.nan
    expected = torch.addmm(bias, left, right, beta=beta, alpha=alpha)
    assert torch.allclose(products.multiply_and_add(bias, left, right, beta=beta, alpha=alpha), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_other_types_are_torchs(dtype):
    left, right = (matrix(3, 4) * 8).to(dtype), (matrix(4, 2, 1) * 8).to(dtype)
    assert torch.equal(products.multiply_matrices(left, right), left @ right)


CODE = """
import os
from harness.engines.embedded import numerics
numerics.require_portable()
import torch
from harness.engines.embedded import products
calls = []
whole = products.np.matmul
products.np.matmul = lambda *given, **named: (calls.append(1), whole(*given, **named))[1]
layer = torch.nn.Linear(24, 16)
given = torch.randn(5, 24, requires_grad=True)
layer(given).square().sum().backward()
assert len(calls) == 3, calls
with torch.inference_mode():
    layer(given[None])
assert len(calls) == 4, calls
double = layer.double()
assert torch.allclose(double(given.double()), given.double() @ double.weight.T + double.bias)
print(numerics._openblas_kernels())
"""


@pytest.mark.skipif(bool(why := explain_unable()), reason=why or "this machine can")
def test_a_portable_process_multiplies_through_openblas_forward_and_backward():
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", CODE],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.strip() == "HASWELL", done.stderr


def test_another_library_than_the_recorded_one_is_told(monkeypatch):
    from harness.engines.embedded import numerics

    monkeypatch.setattr(numerics, "cpu_flags", lambda: {"avx2", "fma"})
    monkeypatch.setattr(numerics.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(numerics, "numpy_blas", lambda: ("accelerate", "of this system"))
    assert "numpy multiplies by accelerate of this system, not by OpenBLAS 0.3.30" in numerics.explain_unable()
    monkeypatch.setattr(numerics, "numpy_blas", lambda: ("OpenBLAS", "0.3.99"))
    assert "OpenBLAS 0.3.99" in numerics.explain_unable()
