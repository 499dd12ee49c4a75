"""`minihaares demo | train | sample`: the package from a terminal.

The flags are the fields of the same dataclasses that the notebooks use. Whatever a user can get wrong ends in one
sentence on stderr and a non-zero exit status; whatever else goes wrong is a mistake of ours and keeps its traceback.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import tyro
from torch import Tensor

from .data import BOS, EOT, Corpus, DataConfig, DataError, Tokenizer, load_corpus
from .model import FAMILIES, SCHEMES, ConfigError, ModelConfig, Transformer, generate, scheme_options
from .train import CheckpointError, RunConfig, RunResult, TrainConfig, TrainError, load_run, pick_device, train

USER_ERRORS = (ConfigError, DataError, CheckpointError, TrainError)
UNUSABLE, INTERRUPTED = 2, 130  # exit statuses


@dataclass(frozen=True)
class ModelFlags:
    """Sizes of the Transformer, and what its residual stream is."""

    scheme: str = "haares"  # standard, block, haares, attnres, or a relative; an unknown name lists them all
    family: Literal["pocket", "small", "medium", "large"] = "pocket"  # sets width, heads and ff where they aren't given
    layers: int = 12  # a layer is an attention and an MLP sublayer
    width: int | None = None  # channels of the stream
    heads: int | None = None  # attention heads
    ff: int | None = None  # width of the MLP
    max_context: int = 2048  # longest sequence the model accepts
    mlp_bias: bool = False  # biases in the MLP
    set: tuple[str, ...] = ()  # options of the scheme, such as blocks=6 detail=duplicate

    def config(self) -> ModelConfig:
        """The model's settings; raises ConfigError for an option that the scheme does not have."""
        sizes = {name: getattr(self, name) or size for name, size in FAMILIES[self.family].items()}
        return ModelConfig(
            layers=self.layers,
            max_context=self.max_context,
            mlp_bias=self.mlp_bias,
            scheme=self.scheme,
            options=parse_options(self.scheme, self.set),
            **sizes,
        )


