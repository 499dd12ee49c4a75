"""Learning curves of the headline setting, with what counting reaches."""

from pathlib import Path

from minihaares import pictures

pictures.write(Path(__file__))
