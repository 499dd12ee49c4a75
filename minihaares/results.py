"""The results table of the README: written from the store by `minihaares ablate --table`, and held to it by a test."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from .checkpoints import write_whole
from .findings import ARMS, COMPARISONS, Records, arm, beside_the_paper, corpus_name, signed, unit

BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)


def results_table(records: Records, base: Mapping[str, Any]) -> str:
    """The table of the README in markdown, made from the store alone."""
    million = records.tokens(base) / 1e6
    lines = [
        f"Best validation loss, arm − baseline, nats per {unit(base)}, paired by seed; negative: the arm is better.",
        f"Ours: width {base['width']}, {million:.1f} million tokens of {corpus_name(base)}; sd is the sample standard",
        "deviation over seeds, and only six or more seeds get an interval. The paper's (arXiv 2606.06564): means, of",
        "larger models and far larger budgets. The last column counts our seeds with the sign of the paper's mean;",
        "where that mean is nearly zero it says little.",
        "",
        "| arm − baseline | layers | blocks | difference | sd | seeds | the paper's | seeds on its side |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (_, row), c in zip(beside_the_paper(records, base).iterrows(), COMPARISONS, strict=True):
        if row["n"] == 0 and c.table is None:
            continue  # an extra of ours that nobody has run yet
        names = f"{ARMS[c.arm].label} − {ARMS[c.baseline].label}"
        ours = signed(row["mean"]) if row["n"] else "not recorded"
        if not math.isnan(row["low"]):
            ours += f" (95 %: {signed(row['low'])} to {signed(row['high'])})"
        spread = f"{row['sd']:.4f}" if row["n"] > 1 else ""
        theirs = f"{signed(row['paper'])} (Table {c.table}, {c.corpus})" if c.table else ""
        side = f"{row['same_side']} of {row['n']}" if c.table and row["n"] else ""
        cells = (names, c.layers, c.blocks, ours, spread, row["n"] or "", theirs, side)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n" + elsewhere_table(elsewhere(records, base))


def elsewhere(records: Records, base: Mapping[str, Any]) -> pd.DataFrame:
    """HAARES − Block and Block − Standard in every other recorded setting, in bits per byte, which all texts share.

    Columns: text, width, layers, tokens, lr, and for each of the two differences n, mean, sd.
    """
    found = []
    for s in records.settings():
        if all(s[name] == base[name] for name in s if name != "layers"):
            continue  # the main table has it
        pairs = (("haares", "block"), ("block", "standard"))
        differences = [records.difference(arm(a), arm(b), s, "bits") for a, b in pairs]
        if any(d.n for d in differences):
            text = f"{corpus_name(s)}, {'characters' if s['tokenizer'] == 'char' else 'BPE'}"
            row = {"text": text, "width": s["width"], "layers": s["layers"], "tokens": records.tokens(s), "lr": s["lr"]}
            for (name, _), d in zip(pairs, differences, strict=True):
                row |= {f"{name} n": d.n, f"{name} mean": d.mean, f"{name} sd": d.sd}
            found.append(row)
    order = ["width", "layers", "text", "tokens", "lr"]
    return pd.DataFrame(found).sort_values(order, ignore_index=True) if found else pd.DataFrame()


def elsewhere_table(rows: pd.DataFrame) -> str:
    """`elsewhere` in markdown; nothing if there is nothing."""
    if rows.empty:
        return ""

    def cell(row: pd.Series, name: str) -> str:
        n, spread = row[f"{name} n"], f" ± {row[f'{name} sd']:.4f}"
        return f"{signed(row[f'{name} mean'])}{spread * (n > 1)} ({n})" if n else ""

    lines = [
        "",
        "In other settings, in bits per byte: mean ± sample standard deviation (number of seeds).",
        "",
        "| text | width | layers | tokens | rate | HAARES − Block AttnRes | Block AttnRes − Standard |",
        "|---|---|---|---|---|---|---|",
    ]
    for _, row in rows.iterrows():
        where = (row["text"], row["width"], row["layers"], f"{row['tokens'] / 1e6:.1f} M", f"{row['lr']:g}")
        lines.append(f"| {' | '.join(map(str, (*where, cell(row, 'haares'), cell(row, 'block'))))} |")
    return "\n".join(lines) + "\n"


def write_results(table: str, readme: Path) -> bool:
    """Put the table between the marks `<!-- results -->` and `<!-- /results -->` of a file; False if it has none."""
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    if not BLOCK.search(text):
        return False
    write_whole(readme, lambda path: path.write_text(BLOCK.sub(lambda _: table, text), encoding="utf-8"))
    return True
