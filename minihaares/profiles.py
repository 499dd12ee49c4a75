"""Where a training step's time goes: what torch's profiler sees, sorted into a few kinds of work.

`bench` says how much longer a routed step takes; this says in which operations. Self times, so that nothing counts
twice; the schemes take turns, and each scheme's quickest step counts.
"""

from collections.abc import Callable

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile

from .bench import BenchConfig, build, job, random_tokens
from .machine import pick_device

SETTING = BenchConfig(memory=False)  # that of the cost targets: 48 layers of the small family, 8 x 128 tokens

# The first kind whose beginnings fit an operation's name takes it; names are the profiler's, without "aten::".
KINDS: dict[str, tuple[str, ...]] = {
    "attention": ("_scaled_dot_product",),
    "matrix products": ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"),
    "memory": ("empty", "new_", "zero", "fill", "copy", "clone", "cat", "stack", "resize", "contiguous", "_to_copy"),
    "reductions": ("sum", "mean", "linalg_vector_norm", "_softmax", "logsumexp", "amax", "logaddexp", "max"),
    "optimizer": ("Optimizer", "_fused_adamw", "_foreach"),
    "our functions": ("ActiveRead", "CompletedReads", "RMSNorm"),
    "autograd": ("autograd::", "torch::autograd"),
    "element by element": ("mul", "add", "sub", "div", "neg", "silu", "rsqrt", "exp", "clamp", "lerp", "sqrt", "where",
                           "pow", "reciprocal", "square", "log"),
}  # fmt: skip
OTHER = "views and the rest"


def kind_of(operation: str) -> str:
    """The kind of work a profiler's name stands for."""
    name = operation.removeprefix("aten::")
    return next((kind for kind, beginnings in KINDS.items() if name.startswith(beginnings)), OTHER)


def one_step(work: Callable[[], None], device: torch.device) -> pd.Series:
    """Milliseconds and calls of one call of `work`, by kind: a Series with a two-level index (kind, quantity)."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as seen:
        work()
    rows = [(kind_of(e.key), e.self_cpu_time_total / 1e3, e.count) for e in seen.key_averages()]
    return pd.DataFrame(rows, columns=["kind", "ms", "calls"]).groupby("kind").sum().stack()


def run_profile(config: BenchConfig) -> pd.DataFrame:
    """Self time and calls of a training step by kind of work: a row for each scheme, depth and kind.

    The profiler itself costs time for every operation, so that schemes of many small operations look a little dearer
    than they are: read the differences, and take ratios from `bench`.
    """
    device = pick_device(config.device)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    tokens, tables = random_tokens(config, device), []
    for layers in config.layers:
        jobs = {s: job("step", build(s, layers, config), tokens, config) for s in config.schemes}
        steps: dict[str, list[pd.Series]] = {s: [] for s in jobs}
        for turn in range(-1, config.rounds):  # one more first, to warm up
            for scheme, work in jobs.items():
                seen = one_step(work, device)
                steps[scheme] += [seen] if turn >= 0 else []
        for scheme, taken in steps.items():
            quickest = min(taken, key=lambda step: step.xs("ms", level=1).sum()).unstack().reset_index()
            tables.append(quickest.assign(layers=layers, scheme=scheme))
    return pd.concat(tables, ignore_index=True)[["layers", "scheme", "kind", "ms", "calls"]]
