"""Lightning on CPUs with the strategy that it takes by itself, which asks torch for its default."""

import lightning
import torch
from report import report
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
        self.losses = []

    def training_step(self, batch, _index):
        (rows,) = batch
        loss = (self.layer(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


if __name__ == "__main__":
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False
    )
    model = Regression()
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(128, 16)), batch_size=8))
    report(model.losses, model.parameters())
