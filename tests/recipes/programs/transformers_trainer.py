"""The Trainer of transformers on CPUs, which has accelerate make the group."""

import sys

import torch
from report import report
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
rows = torch.randint(64, (64, 16))
options = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    per_device_train_batch_size=4,
    max_steps=8,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
model = LlamaForCausalLM(config)
trainer = Trainer(model, options, train_dataset=[{"input_ids": r, "labels": r} for r in rows])
trainer.train()
report(
    [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model.parameters()
)
