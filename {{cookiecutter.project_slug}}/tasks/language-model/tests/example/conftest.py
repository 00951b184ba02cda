"""Small Hugging Face checkpoints for the tests of the example.

Delete this folder when you replace data.py or model.py (docs/data_and_model.md).
"""

from pathlib import Path

import pytest

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
# A conversation as text, in Jinja with other brackets.
TEMPLATE = """<s>[% for turn in messages %][[ turn.role ]]. [[ turn.content ]]
[%- if turn.role == "assistant" %]</s>[% else %]. [% endif %][% endfor %]
[%- if add_generation_prompt %]assistant. [% endif %]"""


def make_checkpoint(path: Path, kind: str) -> str:
    """A Llama or a GPT-2 of two layers, with random weights and a token for every letter.

    The Llama has a chat template.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

    marks = ["<s>", "</s>"] if kind == "llama" else ["<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(["<unk>", *marks, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"bos_token": marks[0], "eos_token": marks[-1]} if kind == "llama" else {}
    special = special or {"eos_token": marks[0]}
    tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    if kind == "llama":
        tokens.chat_template = TEMPLATE.replace("[", "{").replace("]", "}")
    tokens.save_pretrained(path)
    common = {"vocab_size": len(vocabulary), "bos_token_id": 1, "eos_token_id": len(marks)}
    if kind == "llama":
        config = LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            **common,
        )
    else:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
        off = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}  # ranks draw others
        config = GPT2Config(**sizes, **off, **common)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session", params=["llama", "gpt2"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
