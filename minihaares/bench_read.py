"""One read over depth alone, against the plain read and, where they are installed, outside implementations."""

import statistics
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call

from . import depth_read
from .bench import interleaved


def fla_read() -> Callable[..., Tensor] | None:
    """fla-core's reference read, if it is installed; from its own file, since `import fla.ops` wants triton as well."""
    fla = find_spec("fla")
    if fla is None:
        return None
    spec = spec_from_file_location("fla_attnres_naive", Path(fla.submodule_search_locations[0], "ops/attnres/naive.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_attnres


def attn_res_read(width: int) -> Callable[..., Tensor] | None:
    """The read of the package attn-res, if it is installed. It knows no key gain, so that is left out."""
    if find_spec("attn_res") is None:
        return None
    from attn_res.main import AttnResOperator

    operator = AttnResOperator(width)
    return lambda query, sources, gain: functional_call(operator, {"pseudo_query": query}, (torch.stack(sources),))


def read_jobs(
    batch: int = 4, context: int = 256, width: int = 512, finished: int = 7, reads: int = 12
) -> dict[str, Callable[[], Any]]:
    """Jobs that make `reads` reads, forward and backward, over `finished` sources and an active pair.

    As in a HAARES block: the lean read shares its work on finished sources between the reads of a block, so one read
    is a block of them divided by their number. Outside implementations join in if they are installed.
    """
    generator = torch.Generator().manual_seed(0)
    bank = [torch.randn(batch, context, width, generator=generator).requires_grad_() for _ in range(finished)]
    P, M = (torch.randn(batch, context, width, generator=generator).requires_grad_() for _ in range(2))
    query = torch.randn(reads, width, generator=generator).div_(width**0.5).requires_grad_()
    gain = torch.ones(width, requires_grad=True)
    bias = torch.full((reads,), -2.0, requires_grad=True)
    settings = depth_read.ReadSettings(True, True, 4.0, 1e-6, 1e-6)
    leaves = [*bank, P, M, query, gain, bias]
    ones = torch.ones(batch, context, width)

    def done(outputs: list[Tensor]) -> None:
        torch.autograd.backward(outputs, [ones] * len(outputs))
        for leaf in leaves:
            leaf.grad = None

    def lean() -> None:
        keys = query * gain
        ahead = depth_read.completed_reads(tuple(bank), keys, bias, 1e-6)
        apply = depth_read.ActiveRead.apply
        done([apply(settings, keys[r], bias[r], a.mixture, a.lse, P, M) for r, a in enumerate(ahead)])

    def plain() -> None:
        outputs = []
        for r in range(reads):
            C, D = depth_read.totals(P, M)
            sources = (*bank, C, depth_read.matched(C, D, 4.0, 1e-6))
            z = depth_read.depth_scores(sources, query[r], gain, 1e-6)
            z[2::2] += bias[r]
            outputs.append(depth_read.mix(torch.softmax(z, dim=0), sources))
        done(outputs)

    jobs: dict[str, Callable[[], Any]] = {"lean": lean, "plain": plain}

    def outside(read: Callable[..., Tensor]) -> Callable[[], None]:
        def job() -> None:
            C, D = depth_read.totals(P, M)
            sources = [*bank, C, depth_read.matched(C, D, 4.0, 1e-6)]
            done([read(query[r], sources, gain) for r in range(reads)])

        return job

    found = {"fla-core naive": fla_read(), "attn-res": attn_res_read(width)}
    return jobs | {name: outside(read) for name, read in found.items() if read}


def run_read(rounds: int = 9, threads: int | None = None) -> pd.DataFrame:
    """One read of 9 sources [4, 256, 512], forward and backward: milliseconds, and the ratio to the plain read."""
    torch.set_num_threads(threads or torch.get_num_threads())
    reads = 12
    times = interleaved(read_jobs(reads=reads), rounds, torch.device("cpu"))
    plain = times["plain"]
    return pd.DataFrame(
        {
            "read": name,
            "median_ms": 1e3 * statistics.median(t) / reads,
            "min_ms": 1e3 * min(t) / reads,
            "median": statistics.median(t) / statistics.median(plain),
            "min": min(t) / min(plain),
        }
        for name, t in times.items()
    )
