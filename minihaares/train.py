"""The paper's recipe (arXiv 2606.06564, section 5.2), in a loop that can be stopped and resumed without a trace.

AdamW at a constant rate, global gradient norm clipped at 1, float32; no warmup, no decay of the rate, no early
stopping; the endpoint is the best of the scheduled validation losses. On a CPU the same settings and number of threads
give the same losses to the last bit, also if the run was killed and resumed on the way. A run is a folder:

    config.json         settings of model, data and training
    tokenizer.json      its hash also stands in every checkpoint
    curve.csv           step, tokens, train_loss, valid_loss, seconds: a line an evaluation
    best.safetensors    the weights with the lowest scheduled validation loss
    last.safetensors    the weights now, AdamW's moments, the random state; where the run stands, in its header
"""

import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from .checkpoints import (
    BEST,
    CONFIG,
    CURVE,
    LAST,
    TOKENIZER,
    Row,
    check_tokenizer,
    fill,
    load_run,
    read_curve,
    read_folder,
    read_tensors,
    write_curve,
    write_tensors,
    write_whole,
)
from .data import IGNORED, PAD, Corpus, batch, load_corpus, save_tokenizer
from .machine import Interrupted, device_name, held_interrupts, own_folder, own_settings, pick_device
from .model import ModelConfig, Transformer, scheme_options
from .settings import CheckpointError, RunConfig, TrainConfig, TrainError

__all__ = [
    "CheckpointError",
    "Interrupted",
    "Row",
    "RunConfig",
    "RunResult",
    "TrainConfig",
    "TrainError",
    "device_name",
    "evaluate",
    "load_run",
    "parameter_groups",
    "pick_device",
    "train",
]

SOME_CHUNKS = 256  # validation chunks enough for a curve, where no floor asks for all of them


@dataclass(frozen=True)
class RunResult:
    """What a finished run has to tell. Losses in nats per predicted token."""

    best_loss: float
    best_step: int
    last_loss: float
    steps: int
    tokens: int  # predicted in training, padding not counted
    seconds: float  # over all sessions, evaluations included
    parameters: int
    curve: tuple[Row, ...]
    floor: float | None  # of a perfect reader on the validation text; known only if all of it was read
    forgetful: float | None  # of a reader that forgets earlier sentences
    device: str
    threads: int
    out: Path


# ----------------------------------------------------------------------------------------------- the recipe


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The paper's two groups for AdamW: matrices of the backbone, which decay, and all the rest, which does not.

    The rest is what has under two dimensions (gains, biases) and what steers the stream: nothing under
    `model.residual` decays unless the residual lists it in an attribute `decayed`. The embedding, tied to the head, is
    a matrix and decays: that is our reading, the paper does not name it.
    """
    listed = {f"residual.{name}" for name in getattr(model.residual, "decayed", ())}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p in model.named_parameters():
        groups[p.ndim >= 2 and (not name.startswith("residual.") or name in listed)].append(p)
    return [dict(params=groups[True], weight_decay=weight_decay), dict(params=groups[False], weight_decay=0.0)]


def token_losses(model: nn.Module, inputs: Tensor, targets: Tensor, autocast: bool, reduction: str) -> Tensor:
    """Cross-entropy in nats over inputs and targets [B, T], reduced over the targets that are not IGNORED."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        logits = model(inputs.to(device))
    return F.cross_entropy(
        logits.float().flatten(0, 1), targets.to(device).flatten(), ignore_index=IGNORED, reduction=reduction
    )


@torch.no_grad()
def evaluate(
    model: nn.Module, chunks: np.ndarray, batch_size: int, limit: int | None = None, autocast: bool = False
) -> float:
    """Mean loss in nats per predicted token over the first `limit` of `chunks` [n, T+1]; None: over all."""
    training = model.training
    model.eval()
    total, count, chunks = 0.0, 0, chunks[:limit]
    for start in range(0, len(chunks), batch_size):
        tokens = torch.from_numpy(chunks[start : start + batch_size].astype(np.int64))
        targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == PAD, IGNORED)
        total += token_losses(model, tokens[:, :-1], targets, autocast, "sum").item()
        count += int((targets != IGNORED).sum())
    model.train(training)
    return total / count


# ------------------------------------------------------------------------------------------------- the loop


@dataclass
class Position:
    """Where a run stands, apart from its tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0  # of the training losses since the last evaluation, and how many they are
    loss_count: int = 0


class Run:
    """A run under way: model, optimizer, position, learning curve, and the folder they are saved in."""

    def __init__(self, config: RunConfig, corpus: Corpus, device: torch.device) -> None:
        self.config, self.recipe, self.corpus, self.device = config, config.train, corpus, device
        self.folder = Path(self.recipe.out)
        self.model = Transformer(config.model, seed=self.recipe.seed).to(device)
        if self.recipe.compile:
            self.model.compile_sublayers()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        r = self.recipe
        # Measured with 48 narrow layers on one CPU thread: fused takes 2.8 ms a step, the other two kernels 6.8 ms.
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, r.weight_decay), lr=r.lr, betas=(r.beta1, r.beta2), eps=r.eps, fused=True
        )
        self.limit = r.eval_chunks or (len(corpus.valid) if corpus.floor is not None else SOME_CHUNKS)
        self.position, self.rows = Position(), []
        self.pending: list[Tensor] = []  # losses that are still on the device
        self.clock = time.perf_counter()

    def step(self) -> None:
        """One optimizer step on the next batch."""
        r, p = self.recipe, self.position
        inputs, targets = batch(self.corpus.train, p.step, r.batch_size, r.data_seed)
        loss = token_losses(self.model, inputs, targets, r.autocast, "mean")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), r.clip)
        self.optimizer.step()
        self.pending.append(loss.detach())
        p.step += 1
        p.tokens += int((targets != IGNORED).sum())

    def settle(self) -> float:
        """Fetch the pending losses into the position; returns the last one. TrainError if one is not finite."""
        p, losses = self.position, torch.stack(self.pending).tolist()
        for i, loss in enumerate(losses, p.step - len(losses) + 1):
            if not math.isfinite(loss):
                raise TrainError(
                    f"The loss became {loss} at step {i}: try a smaller learning rate than {self.recipe.lr:g}. What "
                    f"{self.folder} holds was saved before that."
                )
            p.loss_sum, p.loss_count = p.loss_sum + loss, p.loss_count + 1
        self.pending.clear()
        self.tick()
        return losses[-1]

    def tick(self) -> None:
        now = time.perf_counter()
        self.position.seconds, self.clock = self.position.seconds + now - self.clock, now

    def evaluate(self) -> Row:
        """Add a row to the learning curve, and keep the weights if they are the best so far."""
        p = self.position
        loss = evaluate(self.model, self.corpus.valid, self.recipe.batch_size, self.limit, self.recipe.autocast)
        self.tick()
        if not math.isfinite(loss):
            raise TrainError(f"The validation loss is {loss} at step {p.step}: try a smaller learning rate.")
        best = not self.rows or loss < min(row.valid_loss for row in self.rows)
        self.rows.append(Row(p.step, p.tokens, p.loss_sum / p.loss_count if p.loss_count else None, loss, p.seconds))
        p.loss_sum, p.loss_count = 0.0, 0
        if best:
            write_tensors(self.folder / BEST, self.model.state_dict(), self.header())
        write_curve(self.folder / CURVE, self.rows)
        return self.rows[-1]

    def header(self) -> dict[str, Any]:
        return {
            "position": asdict(self.position),
            "tokenizer": self.corpus.tokenizer.hash,
            "corpus": self.corpus.hash,
            "torch": torch.__version__,
        }

    def save(self) -> None:
        """Everything a later session needs, in one file, so that its parts cannot be of different age."""
        names = {p: name for name, p in self.model.named_parameters()}
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        for p, moments in self.optimizer.state.items():
            tensors |= {f"optimizer.{names[p]}.{key}": t for key, t in moments.items()}
        tensors["rng"] = torch.get_rng_state()
        write_tensors(self.folder / LAST, tensors, self.header())

    def resume(self) -> None:
        """Take up a saved run; raises CheckpointError if it was another one, or its files are damaged."""
        path = self.folder / LAST
        saved, tokenizer = read_folder(self.folder)
        difference = saved.difference(self.config)
        if difference:
            raise CheckpointError(
                f"{self.folder} holds a run with {difference}: choose another --out, or start over with --fresh."
            )
        tensors, header = read_tensors(path)
        check_tokenizer(self.folder, header, tokenizer)
        if header["corpus"] != self.corpus.hash:
            raise CheckpointError(f"{self.folder} was trained on other text; choose another --out, or use --fresh.")
        self.position = Position(**header["position"])
        if self.position.step > self.recipe.steps:
            raise CheckpointError(
                f"{self.folder} is already at step {self.position.step}, beyond {self.recipe.steps}; ask for more "
                "steps, or start over with --fresh."
            )
        rng = tensors.pop("rng")
        moments = {name: tensors.pop(name) for name in list(tensors) if name.startswith("optimizer.")}
        fill(self.model, {name.removeprefix("model."): t for name, t in tensors.items()}, path)
        parameters = dict(self.model.named_parameters())
        for name, t in moments.items():
            owner, _, key = name.removeprefix("optimizer.").rpartition(".")
            self.optimizer.state[parameters[owner]][key] = t.to(self.device)
        torch.set_rng_state(rng)
        # A kill between two saves leaves rows that will be made again.
        self.rows = [row for row in read_curve(self.folder / CURVE) if row.step <= self.position.step]

    def result(self) -> RunResult:
        best = min(self.rows, key=lambda row: row.valid_loss)
        all_read = self.limit >= len(self.corpus.valid)
        return RunResult(
            best_loss=best.valid_loss,
            best_step=best.step,
            last_loss=self.rows[-1].valid_loss,
            steps=self.position.step,
            tokens=self.position.tokens,
            seconds=self.rows[-1].seconds,
            parameters=self.parameters,
            curve=tuple(self.rows),
            floor=self.corpus.floor if all_read else None,
            forgetful=self.corpus.forgetful if all_read else None,
            device=device_name(self.device),
            threads=torch.get_num_threads(),
            out=self.folder,
        )


def check_model(config: ModelConfig) -> None:
    """Raise ConfigError for a scheme or options that cannot work, before any text is prepared."""
    kind, options = scheme_options(config.scheme, config.options)
    kind(config, options, torch.Generator())


def train(
    config: RunConfig,
    corpus: Corpus | None = None,
    resume: bool = True,
    progress: bool = True,
    on_eval: Callable[[Row, nn.Module], Any] | None = None,
) -> RunResult:
    """Train a model and leave the run in `config.train.out`; go on with the run that is there, if there is one.

    `corpus` is `load_corpus(config.data)` unless given. `resume=False` starts over and replaces what the folder holds.
    `progress` shows a bar and says what is used; `on_eval(row, model)` is called after every evaluation.
    Raises ConfigError, DataError, TrainError or CheckpointError with one sentence; Interrupted after Ctrl-C.
    """
    recipe, device = config.train, pick_device(config.train.device)
    check_model(config.model)
    if corpus is None:
        corpus = load_corpus(config.data, progress)
    config = config.fitted(corpus)
    folder = Path(recipe.out)
    with own_folder(folder), own_settings(device, recipe.seed, recipe.threads, recipe.tf32), held_interrupts() as asked:
        run = Run(config, corpus, device)
        if resume and (folder / LAST).exists():
            run.resume()
        else:
            for name in (LAST, BEST, CURVE):
                (folder / name).unlink(missing_ok=True)
            write_whole(folder / TOKENIZER, lambda path: save_tokenizer(corpus.tokenizer, path))
        write_whole(folder / CONFIG, lambda path: path.write_text(config.to_json(), encoding="utf-8"))
        loop(run, asked, progress, on_eval)
        return run.result()


def loop(run: Run, asked: threading.Event, progress: bool, on_eval: Callable[[Row, nn.Module], Any] | None) -> None:
    """Steps, evaluations and saves, until the last step or until `asked` is set."""
    r, p = run.recipe, run.position
    report_every = 1 if run.device.type == "cpu" else 10  # asking a GPU for its loss makes it wait
    if progress:
        m = run.config.model
        start = "finished before" if p.step == r.steps else f"going on from step {p.step}" if p.step else "from scratch"
        sizes = f"{m.scheme}: {m.layers} layers of width {m.width}, {run.parameters:,} parameters"
        tqdm.write(f"{sizes}, on {device_name(run.device)}; {start}, in {run.folder}", file=sys.stderr)

    def evaluation() -> None:
        row = run.evaluate()
        if on_eval is not None:
            on_eval(row, run.model)

    quiet = {} if progress else {"disable": True}  # never disable=False: it would overrule TQDM_DISABLE
    with tqdm(total=r.steps, initial=p.step, desc=run.config.model.scheme, unit="step", **quiet) as bar:
        if not run.rows:
            evaluation()
        since, tokens = time.perf_counter(), p.tokens  # for the speed without evaluations
        while p.step < r.steps and not asked.is_set():
            run.step()
            due = [p.step == r.steps or p.step % every == 0 for every in (r.eval_every, r.save_every or r.eval_every)]
            if any(due) or p.step % report_every == 0:
                loss, speed = run.settle(), (p.tokens - tokens) / (time.perf_counter() - since)
                told = f"loss {loss:.3f}, validation {run.rows[-1].valid_loss:.3f}, {speed:,.0f} tokens/s"
                bar.set_postfix_str(told, refresh=False)
            if due[0]:
                evaluation()
            if due[1]:
                run.save()
            if any(due):
                since, tokens = time.perf_counter(), p.tokens
            bar.update()
    if asked.is_set():
        if run.pending:
            run.settle()
        run.save()
        raise Interrupted(
            f"Stopped at step {p.step} of {r.steps} and saved in {run.folder}; the same command goes on from there."
        )
