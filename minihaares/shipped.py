"""Small trained models that travel with the book, so that a chapter can look into one without training it.

A shipped model is a folder beside the recorded runs, figures/data/models/NAME: float32 weights, settings and tokenizer
of a run's best checkpoint, its learning curve, and a README with the command that made it. A test holds that command
to the settings.
"""

from dataclasses import replace
from pathlib import Path

from .checkpoints import (
    BEST,
    CONFIG,
    CURVE,
    TOKENIZER,
    check_tokenizer,
    fill,
    read_curve,
    read_folder,
    read_tensors,
    write_curve,
    write_tensors,
    write_whole,
)
from .data import Tokenizer, save_tokenizer
from .experiments import recorded
from .model import Transformer
from .settings import CheckpointError, RunConfig

WEIGHTS, README = "model.safetensors", "README.md"
LARGEST = 2 * 2**20  # bytes of all files together

ABOUT = """# {name}

A {scheme} model of {parameters:,} parameters, trained on {corpus}: the best of its scheduled evaluations, at step
{step:,} of {steps:,} after {tokens:,} tokens, with a validation loss of {loss:.4f} nats a token. It holds no text of
the corpus. Load it with `minihaares.shipped.load_shipped("{name}")`. It was made by

```
{command}
```
"""


def ship(run: Path, name: str, command: str, store: Path | None = None) -> Path:
    """Put the best model of a run folder into the store's models/NAME, and return that folder.

    `command` is the line that trained it. Folders of this machine are left out of the settings. Raises CheckpointError
    if the folder is no run, or the model is larger than LARGEST.
    """
    config, tokenizer = read_folder(run)
    tensors, header = read_tensors(run / BEST)
    check_tokenizer(run, header, tokenizer)
    size = sum(4 * t.numel() for t in tensors.values())
    if size > LARGEST:
        raise CheckpointError(f"{run} has {size:,} bytes of weights, and what is shipped has at most {LARGEST:,}.")
    folder = models(store) / name
    folder.mkdir(parents=True, exist_ok=True)
    data, recipe = replace(config.data, data_dir=None, cache_dir=None), replace(config.train, out=Path("runs") / name)
    config = replace(config, data=data, train=recipe)
    curve = read_curve(run / CURVE)
    best = min(curve, key=lambda row: row.valid_loss)
    about = ABOUT.format(
        name=name, scheme=config.model.scheme, parameters=sum(t.numel() for t in tensors.values()),
        corpus=data.corpus, step=best.step, steps=recipe.steps, tokens=best.tokens, loss=best.valid_loss,
        command=command,
    )  # fmt: skip
    kept = {"tokenizer": header["tokenizer"], "corpus": header["corpus"], "loss": best.valid_loss, "command": command}
    write_tensors(folder / WEIGHTS, {key: t.float() for key, t in tensors.items()}, kept)
    write_whole(folder / CONFIG, lambda path: path.write_text(config.to_json(), encoding="utf-8"))
    write_whole(folder / TOKENIZER, lambda path: save_tokenizer(tokenizer, path))
    write_curve(folder / CURVE, curve)
    write_whole(folder / README, lambda path: path.write_text(about, encoding="utf-8"))
    return folder


def models(store: Path | None = None) -> Path:
    """The folder of the shipped models; the book's own unless another store is named."""
    return (recorded() if store is None else store) / "models"


def load_shipped(name: str, store: Path | None = None) -> tuple[Transformer, Tokenizer, RunConfig]:
    """A shipped model in eval mode, its tokenizer and its settings, as `load_run` gives those of a run.

    Raises CheckpointError naming what there is if no model has this name, or if a file of it is damaged.
    """
    folder = models(store) / name
    if not (folder / WEIGHTS).exists():
        there = sorted(path.parent.name for path in models(store).glob(f"*/{WEIGHTS}"))
        raise CheckpointError(f"No model {name!r} is shipped; there are: {', '.join(there) or 'none'}.")
    config, tokenizer = read_folder(folder)
    tensors, header = read_tensors(folder / WEIGHTS)
    check_tokenizer(folder, header, tokenizer)
    model = Transformer(config.model)
    fill(model, tensors, folder / WEIGHTS)
    return model.eval(), tokenizer, config
