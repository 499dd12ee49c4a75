"""Four, six and eight blocks: the losses, and HAARES − Block."""

from pathlib import Path

from minihaares import pictures

pictures.write(Path(__file__))
