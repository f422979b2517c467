"""Tensor-parallel inference of a language model on CPU.

torchrun --standalone --nproc-per-node 2 examples/howto/transformers_parallel.py MODEL
"""

import sys

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, DistributedConfig

dist.init_process_group("goccl")  # before the model: transformers would make a group with Gloo
split = DistributedConfig(tp_size=dist.get_world_size())
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], distributed_config=split)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompt = tokenizer("The balanced binary tree", return_tensors="pt")
with torch.inference_mode():
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)
if dist.get_rank() == 0:
    print(tokenizer.decode(answer[0]))
dist.destroy_process_group()
