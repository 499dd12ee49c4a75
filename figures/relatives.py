"""Every method's difference to Standard at equal tokens, FLOPs and seconds, at 12 and 48 layers."""

from pathlib import Path

from minihaares import pictures_relatives

pictures_relatives.write(Path(__file__))
