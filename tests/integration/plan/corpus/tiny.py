"""Tiny configurations, a tokenizer and texts that the scripts share; everything is made on the spot, nothing is downloaded."""

import json
import tempfile
from pathlib import Path

SENTENCE = "the quick brown fox jumps over a lazy dog while budget meters count every second of the training run"
WORDS = SENTENCE.split()


def texts(count=48):
    return [" ".join(WORDS[(i * 7 + j * 3) % len(WORDS)] for j in range(4 + i % 20)) for i in range(count)]


def folder(name, config):
    """A directory with a config.json and no weights, as a half-downloaded model has."""
    path = Path(tempfile.mkdtemp(), name)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    model = models.WordLevel({w: i for i, w in enumerate([*special, *sorted(set(WORDS))])}, unk_token="<unk>")
    core = Tokenizer(model)
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=64, **names)


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "dtype": "bfloat16",
}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 64,
    "d_ff": 128,
    "d_kv": 16,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "eos_token_id": 3,
    "decoder_start_token_id": 0,
}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
