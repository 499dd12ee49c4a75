"""The measuring tools: exact counts are exact, and timing gives ratios without being asserted on."""

import pytest
import torch
from torch import nn

from minihaares import bench, bench_read
from minihaares.model import ConfigError, ModelConfig, Transformer

TINY = dict(vocab_size=16, batch_size=2, context=12, rounds=1, memory=False, family="pocket", layers=(2,))


def test_saved_bytes_of_a_chain_counted_by_hand():
    """One linear layer and a square: the input, the output, nothing twice and no parameter."""
    config = bench.BenchConfig(**TINY)
    model, tokens = bench.build("standard", 2, config), bench.random_tokens(config, torch.device("cpu"))
    saved = bench.saved_bytes(model, tokens)
    n, d, ff, V, layers = 2 * 12, 32, 128, 16, 2
    # Norms keep their input and a scalar, per event and at the end; the first one's input is the embedding.
    assert saved["norm"] == 4 * n * (d + 1) * 2 * layers
    # An MLP keeps its input (the norm's output), gate and up in one, silu(gate), and their product.
    assert saved["mlp"] == 4 * n * (d + 2 * ff + ff + ff) * layers
    # Standard keeps nothing along depth of its own.
    assert saved["depth"] == 0
    assert saved["head"] >= 4 * n * (d + V)


def test_saved_bytes_of_the_depth_reads():
    """Lean reads keep one accumulator an event and scalars; plain ones far more; recompute fewer mixtures."""
    config = bench.BenchConfig(**TINY)
    tokens = bench.random_tokens(config, torch.device("cpu"))
    total = {
        s: sum(bench.saved_bytes(bench.build(s, 8, config), tokens).values())
        for s in ("standard", "haares:plain", "haares:lean", "haares:recompute")
    }
    assert total["standard"] < total["haares:recompute"] < total["haares:lean"] < total["haares:plain"]
    vector = 4 * 2 * 12 * 32
    reads_with_an_active_block = 16 - 4
    spared = total["haares:lean"] - total["haares:recompute"]
    assert 0 <= reads_with_an_active_block * vector - spared < 64  # the weight 1 of a lone source is kept instead


def test_hooks_leave_no_trace():
    config = bench.BenchConfig(**TINY)
    model, tokens = bench.build("haares", 2, config), bench.random_tokens(config, torch.device("cpu"))
    before = model(tokens)
    bench.saved_bytes(model, tokens)
    assert torch.equal(model(tokens), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert "read" not in vars(model.residual)


def test_flops_agree_with_counting_matrix_products():
    model = Transformer(ModelConfig(vocab_size=16, layers=1, width=8, heads=2, ff=12))
    tokens = torch.zeros(1, 6, dtype=torch.long)
    n, T = 5, 5
    products = n * 8 * 24 + n * 8 * 8 + n * 8 * 24 + n * 12 * 8 + n * 8 * 16  # qkv, out, gate and up, down, head
    attention = 2 * 2 * (2 * T * T * 4)  # scores and mixture, for each of two heads of size 4
    # Backward twice as much; attention two and a half times, for its scores are made again.
    assert bench.flops(model, tokens) == 3 * 2 * products + attention + attention * 5 // 2


def test_a_table_has_a_row_a_scheme_and_its_ratios(tmp_path):
    config = bench.BenchConfig(
        **TINY | dict(work=("forward", "step", "generate"), schemes=("standard", "block:plain"), new_tokens=2)
    )
    table = bench.run(config)
    assert list(table["scheme"]) == ["standard", "block:plain"]
    standard = table.iloc[0]
    assert standard[["saved", "flops", "step_median", "step_min", "forward_min", "generate_median"]].eq(1).all()
    assert table["saved"].iloc[1] > 1 and table["flops"].iloc[1] > 1
    path = bench.keep(table, {"family": "pocket", "device": "cpu"}, "test", tmp_path)
    bench.keep(table, {"family": "pocket", "device": "cpu"}, "test", tmp_path)
    assert len(bench.pd.read_csv(path)) == 4


def test_the_micro_benchmark_compares_equal_things():
    """Its lean and plain jobs compute the same gradients."""
    jobs = bench_read.read_jobs(batch=1, context=3, width=8, finished=3, reads=2)
    leaves = [c.cell_contents for c in jobs["lean"].__closure__ if isinstance(c.cell_contents, list)]
    bank = next(x for x in leaves if all(isinstance(t, torch.Tensor) for t in x))
    grads = {}

    def catch(name: str):
        return lambda g: grads.setdefault(name, g.clone())

    for name in jobs:
        handle = bank[0].register_hook(catch(name))
        jobs[name]()
        handle.remove()
    torch.testing.assert_close(grads["lean"], grads["plain"], rtol=1e-5, atol=1e-6)
    assert grads.keys() == {"lean", "plain", "fla-core naive", "attn-res"}  # the outside ones know no detail bias


def test_wrong_settings_are_one_sentence():
    with pytest.raises(ConfigError, match="standard among"):
        bench.BenchConfig(schemes=("haares",))
    with pytest.raises(ConfigError, match="work"):
        bench.BenchConfig(work=("sideways",))
    with pytest.raises(ConfigError, match="target"):
        bench.preset("nothing")
    assert isinstance(bench.build("haares:plain", 2, bench.BenchConfig(**TINY)), nn.Module)
