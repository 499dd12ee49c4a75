"""The files of a run, written so that none is ever half there, and read so that none is believed unseen.

Tensors go to safetensors files with a JSON header of our own (no pickle, so opening a stranger's run is safe); the
learning curve is a CSV file. Each file is written under another name and then renamed: at any moment, also after a
kill or on a full disk, it is either the old one or the new one.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .data import Tokenizer, load_tokenizer
from .model import Transformer
from .settings import CheckpointError, RunConfig, TrainError

CONFIG, TOKENIZER, CURVE = "config.json", "tokenizer.json", "curve.csv"
BEST, LAST = "best.safetensors", "last.safetensors"
KEY = "minihaares"  # our entry in a safetensors header
FORMAT = 1  # raise it when a file's contents change their meaning


class Row(NamedTuple):
    """One evaluation. Losses in nats per predicted token; `train_loss` is the mean since the row before."""

    step: int
    tokens: int  # predicted in training so far, padding not counted
    train_loss: float | None  # None before the first step
    valid_loss: float
    seconds: float  # spent so far, evaluations included, over all sessions of the run


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file beside `path`, then rename it to `path`.

    Raises TrainError, with `path` as it was, if the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).rpartition("rror: ")[2]
        raise TrainError(
            f"Could not save {path} ({reason}). What was saved before is untouched: make room, then the same command "
            "goes on from there."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """`tensors`, and `header` as JSON, in one safetensors file."""
    header = {"format": FORMAT, "file": path.name, **header}
    tensors = {name: t.detach().contiguous() for name, t in tensors.items()}
    write_whole(path, lambda temporary: save_file(tensors, temporary, {KEY: json.dumps(header)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote, on the CPU; raises CheckpointError if it is missing, damaged or foreign."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the run has not saved yet, or the folder holds no run.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({error}); train again with --fresh.") from None
    if (header.get("format"), header.get("file")) != (FORMAT, path.name):
        raise CheckpointError(f"{path} is no {path.name} of this version of minihaares; train again with --fresh.")
    return tensors, header


def fill(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load `tensors` into `module`; raises CheckpointError naming the first one that does not fit."""
    own = module.state_dict()
    for name in [*own, *tensors]:
        here, there = (tuple(d[name].shape) if name in d else "absent" for d in (own, tensors))
        if here != there:
            raise CheckpointError(f"{path} belongs to another model: {name} is {there} in it and {here} in this one.")
    module.load_state_dict(tensors)


def write_curve(path: Path, rows: Sequence[Row]) -> None:
    """All rows as CSV, floats to the last bit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows)  # None becomes an empty cell
    write_whole(path, lambda temporary: temporary.write_text(text.getvalue(), encoding="utf-8"))


def read_curve(path: Path) -> list[Row]:
    """The rows of a curve.csv; raises CheckpointError if it is missing or damaged."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return [
                Row(
                    int(cells["step"]),
                    int(cells["tokens"]),
                    float(cells["train_loss"]) if cells["train_loss"] else None,
                    float(cells["valid_loss"]),
                    float(cells["seconds"]),
                )
                for cells in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error}); train again with --fresh.") from None


def read_folder(folder: Path) -> tuple[RunConfig, Tokenizer]:
    """Settings and tokenizer of a run; raises CheckpointError (DataError for the tokenizer) if they cannot be read."""
    path = folder / CONFIG
    try:
        config = RunConfig.from_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{folder} is no run: it has no {CONFIG}; name the folder that train filled.") from None
    except (UnicodeDecodeError, CheckpointError) as error:
        raise CheckpointError(f"{path} is damaged or foreign ({error}); train again with --fresh.") from None
    return config, load_tokenizer(folder / TOKENIZER)


def check_tokenizer(folder: Path, header: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Raise CheckpointError unless the checkpoint with this header was trained with `tokenizer`."""
    if header["tokenizer"] != tokenizer.hash:
        raise CheckpointError(
            f"The tokenizer {tokenizer.hash} does not belong to the checkpoint in {folder}, which was trained with "
            f"{header['tokenizer']}; bring its own {TOKENIZER} back, or train again with --fresh."
        )


def load_run(folder: Path | str, device: str = "cpu") -> tuple[Transformer, Tokenizer, RunConfig]:
    """The best model of a run, in eval mode, its tokenizer and its settings.

    Raises CheckpointError if the folder is no run, a file of it is damaged or missing, or the tokenizer is not the
    one that the model was trained with; DataError if the tokenizer's file is no tokenizer.
    """
    folder = Path(folder)
    config, tokenizer = read_folder(folder)
    tensors, header = read_tensors(folder / BEST)
    check_tokenizer(folder, header, tokenizer)
    model = Transformer(config.model)
    fill(model, tensors, folder / BEST)
    return model.to(device).eval(), tokenizer, config
