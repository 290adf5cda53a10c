"""One thread for PyTorch: at these sizes its pool and NumPy's only wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
