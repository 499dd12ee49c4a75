"""Every other residual scheme the book compares, one file a method, behind the seam of `model.py`.

Importing this package enters them in `model.SCHEMES`; adding a method is one file here, its import and one line below
(and, if it shall be priced, a function in `costs_relatives`). Chapter 18 adds one.
"""

from ..model import SCHEMES
from .delta import Delta
from .denseformer import DenseFormer
from .hires import HiRes
from .hyper import HyperConnections
from .mhc import ManifoldHyperConnections
from .muddformer import MUDDFormer
from .streams import Stream
from .vwn import VirtualWidth

SCHEMES.update(
    postnorm=(Stream, {"norm": "post"}),
    deepnorm=(Stream, {"norm": "deep"}),
    rezero=(Stream, {"gate": "scalar"}),
    layerscale=(Stream, {"gate": "channel"}),
    denseformer=(DenseFormer, {}),
    muddformer=(MUDDFormer, {}),
    delta=(Delta, {}),
    hc=(HyperConnections, {}),
    mhc=(ManifoldHyperConnections, {}),
    vwn=(VirtualWidth, {}),
    hires=(HiRes, {}),
)
