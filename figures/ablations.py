"""Every arm's difference to Block Attention Residuals, beside the paper's."""

from pathlib import Path

from minihaares import pictures

pictures.write(Path(__file__))
