"""Whole programs for `run.py --operations tests/libraries/programs.py`: a training step, and tokens one by one.

The model is fla's HGRN, small, with its own layers, norms and loss; it needs flash-linear-attention and transformers
beside fla-core. (For the first step of fla's DeltaNet, stock needs over 300 s.) A CUDA graph takes all launches of
the decoded tokens at once.
"""

from __future__ import annotations

from typing import Any

from operations import device, integers
from plan import Call, Operation

VOCABULARY, BATCH, LENGTH, DECODED = 8192, 4, 1024, 16
WIDTH = 256  # with 512, stock takes 232 s for the first training step
MODULE = "fla.models.hgrn"


def model() -> Any:
    """HGRN of four layers with the same weights in every process."""
    import torch
    from fla.models.hgrn import HGRNConfig, HGRNForCausalLM

    torch.manual_seed(1)
    config = HGRNConfig(hidden_size=WIDTH, num_hidden_layers=4, vocab_size=VOCABULARY)
    return HGRNForCausalLM(config).to(device(), torch.bfloat16)


def training_step() -> Call:
    """Forward, loss, backward and the optimizer; the loss changes from step to step, so its bits say little."""
    import torch

    network, tokens = model(), integers(0, VOCABULARY, BATCH, LENGTH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)

    def step() -> list[Any]:
        loss = network(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.detach()]

    return step


def decoding() -> Call:
    """Some tokens after a prompt, each the likeliest one."""
    import torch

    network, prompt = model().eval(), integers(0, VOCABULARY, 1, 64)

    @torch.no_grad()
    def decode() -> list[Any]:
        found = network(input_ids=prompt, use_cache=True)
        token, said = found.logits[:, -1:].argmax(-1), []
        for _ in range(DECODED):
            found = network(input_ids=token, past_key_values=found.past_key_values, use_cache=True)
            token = found.logits[:, -1:].argmax(-1)
            said.append(token)
        return [torch.cat(said, 1)]

    return decode


def decoding_by_graph() -> Call:
    """The same; its first call runs and captures it, each later one replays it."""
    import torch

    decode, graph = decoding(), torch.cuda.CUDAGraph()
    results: list[Any] = []

    def captured() -> None:
        decode()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            results.extend(decode())

    def call() -> list[Any]:
        if not results:
            captured()
        graph.replay()
        return results

    return call


OPERATIONS = tuple(
    Operation(name, "fla.models", "flash-linear-attention", make, (MODULE,), tokens=tokens)
    for name, make, tokens in (
        ("fla training step", training_step, BATCH * LENGTH),
        ("fla decode, eager", decoding, DECODED),
        ("fla decode, CUDA graph", decoding_by_graph, DECODED),
    )
)
