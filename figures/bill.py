"""What HAARES costs against what it buys."""

from pathlib import Path

from minihaares import pictures

pictures.write(Path(__file__))
