"""minihaares: residual streams from a minimal Transformer to HAARES, in code small enough to read."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("minihaares")
except PackageNotFoundError:  # used from a checkout that was never installed
    __version__ = "0+unknown"

from . import relatives  # noqa: E402,F401  (enters its schemes in the registry)
