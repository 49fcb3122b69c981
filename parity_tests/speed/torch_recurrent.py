"""The encoder's recurrent network in PyTorch: `nn.LSTM`, which torch_ref's LSTM calls."""

import numpy as np
import torch

import torch_ref
from parity_tests.speed import torch_device
from parity_tests.speed.recurrent import FEATURES, HIDDEN, LAYERS, draw
from parity_tests.speed.workload import Program


def build(device: str) -> Program:
    """Outputs and the gradients of the inputs and of all weights."""
    wait = torch_device.on(device)
    drawn_inputs, drawn_along, drawn = draw()
    inputs, along = torch.tensor(drawn_inputs, device=device).requires_grad_(), torch.tensor(drawn_along, device=device)
    module = torch_ref.LSTM(FEATURES, HIDDEN, LAYERS).to(device)
    module.load_state_dict({name: torch.tensor(x) for name, x in drawn.items()})

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        outputs = module(inputs)[0]
        gradient, *_ = torch.autograd.grad(outputs, [inputs, *module.parameters()], along)
        wait()
        return outputs.detach(), gradient

    def outputs() -> dict[str, np.ndarray]:
        result, gradient = (x.cpu().numpy() for x in both())
        return {"output": result, "gradient of inputs": gradient}

    return Program(both, outputs)
