"""HAARES − Block and Block − Standard at 12, 24 and 48 layers."""

from pathlib import Path

from minihaares import pictures

pictures.write(Path(__file__))
