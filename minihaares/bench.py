"""What a scheme costs, measured: time against Standard, bytes kept for the backward pass, peak memory, FLOPs.

Times on a shared machine are noisy, ratios less so: the schemes take turns in one process, round after round, and
both the ratio of medians and the ratio of minima are given. Bytes saved for the backward pass are exact: every
storage a graph holds, once, parameters apart.
"""

import contextlib
import itertools
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from tqdm import tqdm

from .checkpoints import write_whole
from .experiments import FULL_PRECISION, STORE, commit
from .machine import device_name, peak_resident, pick_device
from .model import FAMILIES, ConfigError, ModelConfig, Transformer, choose, generate
from .train import parameter_groups

WORK = ("forward", "backward", "step", "generate")  # backward: forward and backward; step: with AdamW
ROUTED = ("standard", "block", "haares")
RELATIVES = ("hires", "denseformer", "muddformer", "delta:block", "delta", "hc", "vwn", "mhc")


@dataclass(frozen=True)
class BenchConfig:
    """What to measure. A scheme may carry a way to read, as in `haares:plain` (lean, recompute, plain), or be
    `delta:block`, Delta with `blocks` blocks."""

    family: str = "small"  # pocket, small, medium, large
    layers: tuple[int, ...] = (48,)
    schemes: tuple[str, ...] = ROUTED
    blocks: int = 4
    batch_size: int = 8
    context: int = 128
    vocab_size: int = 256
    work: tuple[str, ...] = ("step",)  # of forward, backward, step, generate
    rounds: int = 7
    new_tokens: int = 32  # made by one `generate`
    device: str = "auto"
    threads: int | None = None
    autocast: bool = False  # sublayers in bfloat16
    tf32: bool = False  # quicker, coarser float32 matrix products on CUDA
    compile: bool = False  # each kind of sublayer through torch.compile
    memory: bool = True  # peak memory too; on a CPU that takes a fresh process for each scheme

    def __post_init__(self) -> None:
        choose("family", self.family, FAMILIES)
        for work in self.work:
            choose("work", work, WORK)
        if self.rounds < 1 or "standard" not in self.schemes:
            raise ConfigError("rounds must be at least 1, and standard among the schemes: ratios are taken to it.")


PRESETS: dict[str, dict[str, Any]] = {
    "target": dict(layers=(48,), schemes=("standard", "block", "haares", "haares:recompute", "haares:plain")),
    "depth": dict(layers=(12, 24, 48, 96), memory=False),
    "pocket": dict(family="pocket", layers=(48,), context=256, schemes=("standard", "block", "haares", "haares:plain")),
    "small-all": dict(layers=(12, 24, 48, 96), work=WORK, rounds=3, memory=False),
    "pocket-all": dict(family="pocket", layers=(12, 24, 48, 96), context=256, work=WORK, rounds=4, memory=False),
    "medium-all": dict(
        family="medium", layers=(12, 24, 48), batch_size=2, work=WORK, rounds=3, new_tokens=8, memory=False
    ),
    "relatives": dict(family="pocket", layers=(12, 48), schemes=ROUTED + RELATIVES, memory=False),
    "paper": dict(layers=(48,), batch_size=16, context=512, rounds=4, schemes=(*ROUTED, "block:plain", "haares:plain")),
}
"""Named settings. `paper` is its Table 13 at width 128; on a large GPU add `--family medium`."""


def build(scheme: str, layers: int, config: BenchConfig) -> Transformer:
    """The model of a scheme such as "haares" or "haares:plain", on the device."""
    name, _, read = scheme.partition(":")
    options: dict[str, Any] = {"blocks": config.blocks} if name in ("block", "haares") or read == "block" else {}
    options |= {"read": read} if read and read != "block" else {}
    sizes = FAMILIES[config.family] | dict(vocab_size=config.vocab_size, layers=layers)
    model = Transformer(ModelConfig(**sizes, scheme=name, options=options)).to(pick_device(config.device))
    if config.compile:
        model.compile_sublayers()
    return model


def loss_of(model: nn.Module, tokens: Tensor, autocast: bool = False) -> Tensor:
    """Next-token cross-entropy of tokens [B, T+1]."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=autocast):
        logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


# ------------------------------------------------------------------------------------------------- exact counts


def saved_bytes(model: Transformer, tokens: Tensor, autocast: bool = False) -> dict[str, int]:
    """Bytes the graph of one loss keeps for its backward pass, by what asked for them first.

    Keys: norm, attention, mlp (inside sublayers, after their norm), depth (the residual scheme), head (with the
    loss). Each storage counts once, at its full size; parameters and the tokens do not count.
    """
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers(), tokens)}
    held: dict[int, tuple[str, int, Tensor]] = {}  # the tensor too: a freed storage's address could come back
    labels = ["head"]

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            held.setdefault(storage.data_ptr(), (labels[-1], storage.nbytes(), x))
        return x

    with contextlib.ExitStack() as stack:
        for module, label in _labelled(model):
            for register, action in (
                (module.register_forward_pre_hook, lambda *_, label=label: labels.append(label)),
                (module.register_forward_hook, lambda *_: labels.pop() and None),
            ):
                stack.callback(register(action).remove)
        for verb in ("read", "write", "readout"):
            stack.enter_context(_labelled_verb(model.residual, verb, labels))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x))
        loss_of(model, tokens, autocast)
    totals = dict.fromkeys(("norm", "attention", "mlp", "depth", "head"), 0)
    for label, size, _ in held.values():
        totals[label] += size
    return totals


def _labelled(model: Transformer) -> Iterator[tuple[nn.Module, str]]:
    for event, sublayer in enumerate(model.sublayers):
        yield sublayer, "mlp" if event % 2 else "attention"
        yield sublayer.norm, "norm"


@contextlib.contextmanager
def _labelled_verb(residual: nn.Module, verb: str, labels: list[str]) -> Iterator[None]:
    plain = getattr(residual, verb)

    def labelled(*args: Any) -> Any:
        labels.append("depth")
        try:
            return plain(*args)
        finally:
            labels.pop()

    setattr(residual, verb, labelled)
    try:
        yield
    finally:
        delattr(residual, verb)


def _matvec_flops(matrix: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(matrix)


# What torch's counter leaves out on a CPU: attention, and products with a vector.
UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
        sdpa_backward_flop_count(*shapes[:4])
    ),
    torch.ops.aten.mv: _matvec_flops,
    torch.ops.aten.addmv_: lambda _, matrix, *__, **___: 2 * math.prod(matrix),
}


def flops(model: Transformer, tokens: Tensor) -> int:
    """Floating-point operations of all products with matrices in one forward and backward pass, attention in full.

    Attention is counted without regard to its mask, as torch does; element-wise work is not counted.
    """
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        loss_of(model, tokens).backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops()


# ----------------------------------------------------------------------------------------------------- timing


def interleaved(jobs: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each job in each of `rounds` rounds, the jobs in turn; one more round first, to warm up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    turns = tqdm(list(itertools.product(range(-1, rounds), jobs)), desc="timing", file=sys.stderr, leave=False)
    for turn, name in turns:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        jobs[name]()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn >= 0:
            times[name].append(time.perf_counter() - start)
    return times


def job(work: str, model: Transformer, tokens: Tensor, config: BenchConfig) -> Callable[[], Any]:
    """A function of no arguments that does `work` once."""
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-5, fused=True) if work == "step" else None

    def forward() -> None:
        with torch.no_grad():
            loss_of(model, tokens, config.autocast)

    def backward() -> None:
        loss_of(model, tokens, config.autocast).backward()
        if optimizer is None:
            model.zero_grad(set_to_none=True)
            return
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def make() -> None:
        generate(model, tokens[:, :16], config.new_tokens, temperature=0.0)

    return {"forward": forward, "backward": backward, "step": backward, "generate": make}[work]


def peak_bytes(scheme: str, layers: int, config: BenchConfig) -> int:
    """Peak memory of a training step: allocated on CUDA; on a CPU, resident size of a fresh process."""
    device = pick_device(config.device)
    if device.type != "cuda":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_resident_after_steps, (scheme, layers, config))
    model, tokens = build(scheme, layers, config), random_tokens(config, device)
    work = job("step", model, tokens, config)
    work()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated()


def _resident_after_steps(scheme: str, layers: int, config: BenchConfig) -> int:
    torch.set_num_threads(config.threads or torch.get_num_threads())
    work = job("step", build(scheme, layers, config), random_tokens(config, torch.device("cpu")), config)
    work()
    work()
    return peak_resident()


def random_tokens(config: BenchConfig, device: torch.device) -> Tensor:
    """Tokens [batch, context + 1], the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (config.batch_size, config.context + 1), generator=generator).to(device)


def run(config: BenchConfig) -> pd.DataFrame:
    """Measure every scheme at every depth: a row each, with ratios to Standard at the same depth."""
    device = pick_device(config.device)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    tokens, rows = random_tokens(config, device), []
    for layers in config.layers:
        models = {scheme: build(scheme, layers, config) for scheme in config.schemes}
        table = {scheme: {"layers": layers, "scheme": scheme} for scheme in models}
        for scheme, model in models.items():
            saved = saved_bytes(model, tokens, config.autocast)
            table[scheme] |= {"saved_mib": sum(saved.values()) / 2**20, "saved_depth_mib": saved["depth"] / 2**20}
            table[scheme]["gflop"] = flops(model, tokens) / 1e9
            table[scheme]["parameters"] = sum(p.numel() for p in model.parameters())
        for work in config.work:
            times = interleaved({s: job(work, m, tokens, config) for s, m in models.items()}, config.rounds, device)
            for scheme, seconds in times.items():
                table[scheme] |= {
                    f"{work}_ms": 1e3 * statistics.median(seconds),
                    f"{work}_median": statistics.median(seconds) / statistics.median(times["standard"]),
                    f"{work}_min": min(seconds) / min(times["standard"]),
                }
        del models
        for scheme, row in table.items():
            row["saved"] = row["saved_mib"] / table["standard"]["saved_mib"]
            row["flops"] = row["gflop"] / table["standard"]["gflop"]
            if config.memory:
                row["peak_mib"] = peak_bytes(scheme, layers, config) / 2**20
        rows += table.values()
    return pd.DataFrame(rows)


def keep(table: pd.DataFrame, settings: dict[str, Any], name: str, store: Path = STORE) -> Path:
    """Add measured rows, with where and when, to figures/data/bench_NAME.csv; its path."""
    device = pick_device(settings.get("device", "auto"))
    table = table.assign(
        **{k: str(v) if isinstance(v, tuple) else v for k, v in settings.items() if k not in table and k != "layers"},
        on=device_name(device),
        torch=torch.__version__,
        commit=commit(),
        finished=datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    )
    path = store / f"bench_{name}.csv"
    store.mkdir(parents=True, exist_ok=True)
    if path.exists():
        table = pd.concat([pd.read_csv(path), table], ignore_index=True)
    write_whole(path, lambda temporary: table.to_csv(temporary, index=False, float_format=FULL_PRECISION))
    return path


def preset(name: str) -> BenchConfig:
    """The settings called `name`; ConfigError if there are none."""
    choose("preset", name, PRESETS)
    return BenchConfig(**PRESETS[name])
