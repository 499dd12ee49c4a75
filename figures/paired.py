"""Paired differences by seed, ours beside the paper's: the form of its Figure 2."""

from pathlib import Path

from minihaares import pictures

pictures.write(Path(__file__))
