"""Small stores written by hand, for tests of what is read from them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from minihaares import experiments

SETTING = {
    "layers": 48, "width": 32, "heads": 2, "ff": 128, "corpus": "tinystories", "tokenizer": "char", "context": 10,
    "batch_size": 10, "lr": 1e-3, "steps": 40, "eval_every": 10, "data_seed": 42, "eval_chunks": 4, "dtype": "float32",
}  # fmt: skip
HASHES = {"corpus_hash": "c0", "tokenizer_hash": "t0"}


def put(
    store: Path,
    scheme: str,
    seed: int,
    losses: list[float],
    options: dict[str, Any] | None = None,
    grid: str = "by hand",
    **changes: Any,
) -> None:
    """Record a run whose validation losses at the evaluations 0, 1, 2, … are these."""
    row = {**SETTING, **HASHES, **changes}
    steps = [i * row["eval_every"] for i in range(len(losses))]
    curve = pd.DataFrame({"step": steps, "valid_loss": losses})
    curve["tokens"] = curve["step"] * row["batch_size"] * row["context"]
    options = json.dumps(options or {})
    best = min(losses)
    run = hashlib.sha256(repr((scheme, options, seed, losses, row)).encode()).hexdigest()[:12]
    row |= {"run": run, "grid": grid, "arm": scheme, "scheme": scheme, "options": options, "seed": seed}
    row |= {"tokens": int(curve["tokens"].iloc[-1]), "best_loss": best, "best_step": steps[losses.index(best)]}
    experiments.append({**row, "last_loss": losses[-1], "bits_per_byte": 1.5 * best}, curve, store)
