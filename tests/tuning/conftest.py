"""The GPU that stands in, for the tests of this folder."""

from standing_gpu import arguments, fake, linear

__all__ = ["arguments", "fake", "linear"]
