"""A plain PyTorch loop."""

import torch

model = torch.nn.Linear(16, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    loss = model(torch.rand(8, 16).to("cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
