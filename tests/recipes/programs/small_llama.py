"""Writes a small Llama with random weights, and a tokenizer: small_llama.py FOLDER."""

import sys

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.manual_seed(0)
words = ["The", "balanced", "binary", "tree", *(f"word{n}" for n in range(252))]
config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.5,
    eos_token_id=None,
    bos_token_id=None,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="word0"))
tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])
