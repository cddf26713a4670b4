"""Tensors that several of these files launch their kernels on."""

import pytest
import torch


@pytest.fixture
def xy():
    """A row of ones, and one to write to."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.ones(50, device=device), torch.zeros(50, device=device)
