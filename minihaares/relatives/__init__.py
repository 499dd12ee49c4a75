"""Every other residual scheme the book compares, one file a method, behind the seam of `model.py`.

Importing this package enters them in `model.SCHEMES`; adding a method is one file here and one line below.
"""

from ..model import SCHEMES
from .streams import Stream

SCHEMES.update(
    postnorm=(Stream, {"norm": "post"}),
    deepnorm=(Stream, {"norm": "deep"}),
    rezero=(Stream, {"gate": "scalar"}),
    layerscale=(Stream, {"gate": "channel"}),
)
