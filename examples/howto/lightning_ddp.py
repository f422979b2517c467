"""PyTorch Lightning, DDP on two CPU processes.

python examples/howto/lightning_ddp.py
"""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, _index):
        (data,) = batch
        loss = (self.layer(data) - data.sum(dim=1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="goccl"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), DataLoader(TensorDataset(torch.randn(256, 16)), batch_size=8))
    loss = trainer.callback_metrics["loss"].item()
    backend = torch.distributed.get_backend()
    print(f"rank {trainer.global_rank}: backend {backend}, loss {loss:.6f}")
