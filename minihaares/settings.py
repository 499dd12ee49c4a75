"""What a run is made from: the settings of model, data and training, in one value that can be saved and compared."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .data import Corpus, DataConfig
from .model import ConfigError, ModelConfig

# What may change when a run is resumed, since it does not decide what is learned (the text is compared by its hash).
FREE = ("train.steps", "train.out", "train.device", "train.threads", "train.compile", "train.save_every")
FREE += ("data.data_dir", "data.cache_dir")


class CheckpointError(ValueError):
    """A run folder that cannot be used; the message says why and what to do."""


class TrainError(ValueError):
    """Training cannot start or go on; the message says why and what to do."""


@dataclass(frozen=True)
class TrainConfig:
    """The recipe. Rate and optimizer are the paper's, which takes 30,000 steps of 16 chunks of 512 tokens."""

    steps: int = 1000  # optimizer steps
    batch_size: int = 16  # chunks a step
    lr: float = 3e-4  # learning rate, constant
    beta1: float = 0.9  # AdamW's memory of the gradient
    beta2: float = 0.95  # AdamW's memory of the squared gradient
    eps: float = 1e-8  # AdamW's epsilon
    weight_decay: float = 0.01  # on the backbone's matrices only
    clip: float = 1.0  # largest global gradient norm
    eval_every: int = 100  # steps between evaluations; one more before the first step and after the last
    eval_chunks: int | None = None  # validation chunks an evaluation reads; None: all if a floor is known, else 256
    seed: int = 42  # draws the model's weights
    data_seed: int = 42  # draws the order of the chunks
    device: str = "auto"  # auto (cuda, else mps, else cpu), cpu, cuda, cuda:1, mps
    autocast: bool = False  # sublayers in bfloat16
    tf32: bool = False  # on CUDA, quicker and coarser float32 products
    compile: bool = False  # sublayers through torch.compile, if the computer has a compiler
    threads: int | None = None  # CPU threads; None: torch's own choice
    save_every: int | None = None  # steps between saves; None: at every evaluation
    out: Path = Path("runs/latest")  # the run's folder

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every", "eval_chunks", "save_every", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrainError(f"{name} is {value}; it must be at least 1.")
        for name in ("lr", "eps", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise TrainError(f"{name} is {getattr(self, name)}; it must be a positive number.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise TrainError(f"{name} is {getattr(self, name)}; it must be at least 0 and under 1.")
        if not 0 <= self.weight_decay < math.inf:
            raise TrainError(f"weight_decay is {self.weight_decay}; it must be 0 or a positive number.")


@dataclass(frozen=True)
class RunConfig:
    """All that a run is made from; `fitted` says what `train` fills in."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.data.context > self.model.max_context:
            raise ConfigError(
                f"context {self.data.context} exceeds the model's max_context {self.model.max_context}; "
                "make the first smaller or the second larger."
            )

    def fitted(self, corpus: Corpus) -> "RunConfig":
        """The same with the vocabulary size of the corpus's tokenizer, and with the frame its records really have."""
        model = replace(self.model, vocab_size=corpus.tokenizer.vocab_size)
        return replace(self, model=model, data=replace(self.data, frame=corpus.frame))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, default=str) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "RunConfig":
        """What `to_json` wrote; raises CheckpointError if it is anything else."""
        try:
            saved = json.loads(text)
            for part, name in (("data", "data_dir"), ("data", "cache_dir"), ("train", "out")):
                if saved[part][name] is not None:
                    saved[part][name] = Path(saved[part][name])
            return cls(ModelConfig(**saved["model"]), DataConfig(**saved["data"]), TrainConfig(**saved["train"]))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise CheckpointError(f"These are not the settings of a minihaares run ({error}).") from None

    def difference(self, other: "RunConfig") -> str | None:
        """The first setting, FREE ones aside, in which `other` is not like this one; None if there is none."""
        ours, theirs = (json.loads(config.to_json()) for config in (self, other))
        for part in ours:
            for name, value in ours[part].items():
                if f"{part}.{name}" not in FREE and value != theirs[part][name]:
                    return f"{part}.{name} = {value!r} and not {theirs[part][name]!r}"
        return None
