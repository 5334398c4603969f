"""PyTorch trains a small model of blocks as language models have, forward, backward and optimizer, step after step."""

import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import served  # noqa: E402
import torch  # noqa: E402

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 16, 512, 1024, 16, 6
_model = None


def start() -> dict:
    global _model
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, device="cuda",
                                             dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    given = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    _model = (model, torch.optim.AdamW(model.parameters(), lr=1e-4), given)
    return {"torch": torch.__version__, **train(1)}


def train(seconds: float, stream: bool = False) -> dict:
    """Steps until so many seconds have passed, the last one waited for; on the default stream or on one of its own."""
    if stream:
        with torch.cuda.stream(torch.cuda.Stream()):
            return train(seconds)
    model, optimizer, given = _model
    torch.cuda.synchronize()
    began, steps, losses = time.perf_counter(), 0, []
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            loss = (model(given) - given.roll(1, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())  # waits for the GPU, as training loops that log do
        steps += 4
    took = time.perf_counter() - began
    return {"steps": steps, "seconds": took, "loss": losses[-1], "reservedBytes": torch.cuda.memory_reserved()}


if __name__ == "__main__":
    served.serve({"start": start, "train": train})
