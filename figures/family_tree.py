"""Residual schemes from residual networks to HAARES and HiRes: who descends from whom."""

from pathlib import Path

from minihaares import pictures_relatives

pictures_relatives.write(Path(__file__))
