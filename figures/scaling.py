"""Compute and loss of Standard and HiRes at five sizes, and the ratio of their compute."""

from pathlib import Path

from minihaares import pictures_scaling

pictures_scaling.main(Path(__file__))
