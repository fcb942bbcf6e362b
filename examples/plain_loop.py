"""A plain PyTorch loop watched by trainbudget: `python examples/plain_loop.py`."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import trainbudget

torch.manual_seed(0)
inputs = torch.randn(2048, 32)
targets = inputs.sum(dim=1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

budget = trainbudget.Budget(cost="1 USD", run_time="10 min")
with trainbudget.Monitor(budget=budget, price="2.49 USD/h", run_name="plain-loop") as monitor:
    for epoch in range(3):
        for x, y in monitor.batches(loader):
            with monitor.step(samples=len(x)):
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        with monitor.phase("eval"), torch.no_grad():
            print(f"epoch {epoch}: loss {torch.nn.functional.mse_loss(model(inputs), targets):.4f}")
