"""profiles: kinds of operations, and that a step's profile holds what its scheme does."""

import pandas as pd
import pytest
import torch

from minihaares import profiles
from minihaares.bench import BenchConfig


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::mm", "matrix products"),
        ("aten::mul", "element by element"),
        ("aten::mv", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::copy_", "memory"),
        ("aten::mean", "reductions"),
        ("ActiveReadBackward", "our functions"),
        ("autograd::engine::evaluate_function: MmBackward0", "autograd"),
        ("aten::as_strided", profiles.OTHER),
    ],
)
def test_operations_have_a_kind(operation: str, kind: str):
    assert profiles.kind_of(operation) == kind


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return profiles.run_profile(BenchConfig(family="pocket", layers=(2, 4), context=8, rounds=2, threads=1))


def test_calls_are_those_of_the_scheme(table: pd.DataFrame):
    """Attention runs once forward and once backward a layer; only routers call the reads."""
    calls = table.set_index(["layers", "scheme", "kind"])["calls"]
    for layers in (2, 4):
        for scheme in ("standard", "block", "haares"):
            assert calls[layers, scheme, "attention"] == 2 * layers
        assert calls[layers, "block", "our functions"] > calls[layers, "standard", "our functions"]


def test_times_are_those_of_real_work(table: pd.DataFrame):
    assert (table["ms"] >= 0).all()
    per_step = table.groupby(["layers", "scheme"])["ms"].sum()
    assert (per_step > 0).all() and len(per_step) == 6


def test_a_step_counts_every_product():
    """Four products of 3 x 3 matrices are four calls, and nothing is left over from the warm-up."""
    matrix = torch.ones(3, 3)
    seen = profiles.one_step(lambda: [matrix.mm(matrix) for _ in range(4)], torch.device("cpu"))
    assert seen["matrix products", "calls"] == 4
