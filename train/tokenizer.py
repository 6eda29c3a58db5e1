"""Builds tokenizer.json: 256 bytes, the control tokens of Qwen3-VL, and the words of questions and answers.

There are no merges, so a printed code is read character by character. Added words start with a space, hold one, or are
Chinese, so that a printed text hardly ever contains one; where it does, training meets the same ids as inference
because both use this tokenizer.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from train import questions

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ROLES = ("user\n", "assistant\n", "system\n")
ANSWERS = (
    '[{"bbox_2d": [',
    '], "label": "',
    '"}, {"bbox_2d": [',
    '"}]',
    '{"price": "',
    '", "date": "',
    '"}',
    ", ",
    "There is no text.",
    "没有文字。",
    " on a ",
    " background.",
    "The text ",
    "The picture shows ",
    "An empty picture ",
    "空白图片",
    "背景",
    "上有",
    "文字",
    "个",
    "一个",
    "两个",
    "三个",
    "四个",
    "五个",
    "六个",
    "。",
    "，",
    "？",
    "、",
    "：",
    "！",
    "“",
    "”",
    *(f" {n}{s}" for n in ("circle", "square", "triangle", "star", "shape") for s in ("", "s")),
    *(
        f" {c}"
        for c in (
            "red",
            "green",
            "blue",
            "yellow",
            "orange",
            "purple",
            "pink",
            "black",
            "white",
            "gray",
            "light",
            "dark",
            "coloured",
            "colored",
            "grey",
        )
    ),
    *questions.COLOUR_ZH.values(),
    *questions.SHAPE_ZH.values(),
    "浅色",
    "深色",
    "彩色",
    "One ",
    "Two ",
    "Three ",
    "Four ",
    "Five ",
    "Six ",
)
STARTS = (
    "What is",
    "What does",
    "What color",
    "What colour",
    "What shape",
    "What text",
    "How many",
    "Read the",
    "Where is",
    "Where are",
    "Describe the",
    "Describe this",
    "Locate the",
    "Locate every",
    "Find the",
    "Extract the",
    "What can",
    "What do",
    "What are",
    "Which color",
    "Give the",
    "Detect the",
    "What code",
    "What word",
    "Please read",
    "Count the",
    "Is there",
    "How much",
    "What date",
    "Return JSON",
    "You are",
    "Draw boxes",
)
MORE = (
    " of",
    " to",
    " you",
    " your",
    " answer",
    " only",
    " with",
    " about",
    " there",
    " any",
    " has",
    " have",
    " one",
    " two",
    " three",
    " four",
    " left",
    " right",
    " top",
    " bottom",
    " name",
    " total",
    " amount",
    " word",
    " words",
    " line",
    " lines",
    " photo",
    " box",
    " bounding",
    " object",
    " objects",
    " that",
    " from",
    " their",
    " it.",
    " it?",
)
_CHINESE = (
    "的 是 什么 图 图片 图中 图里 图上 这 这张 这个 张 第 第一张 第二张 第三张 一 二 三 "
    "四 五 两 几个 几 有 多少 多少个 写 写了 写的 写着 读 读出 识别 提取 输出 颜色 形状 "
    "哪里 在 里 上 上面 请 描述 一句话 用 给出 价格 日期 和 钱 所有 框出 找出 定位 检测 "
    "它 数一数 看到了 你 吗 没有 不 是否 中 标签 牌子 编号 代码 回答 简短 助手 有用 字 "
    "数字 内容 文本 图形 图像 照片 告诉 我 哪个 哪 左 右 上方 下方 大 小"
)
CHINESE = _CHINESE.split()
VOCABULARY = 768  # rows of the embedding; those past the tokenizer's are unused


def byte_alphabet() -> list[str]:
    """The printable stand-in of every byte, as in GPT-2's byte-level vocabulary."""
    keep = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(spare)) for b in range(256)]


def words() -> list[str]:
    """Added words, without repeats: answers, starts, English question words with their space, Chinese."""
    found = {w for text in questions.all_texts() if text.isascii() for w in re.findall(r" [A-Za-z_0-9]{2,}", text)}
    chosen = dict.fromkeys((*ROLES, *ANSWERS, *STARTS, *MORE, *sorted(found), *CHINESE))
    return list(chosen)


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(byte_alphabet())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(w, special=False, normalized=False) for w in words()])
    assert tokenizer.get_vocab_size() <= VOCABULARY, tokenizer.get_vocab_size()
    return tokenizer


@cache
def shared() -> Tokenizer:
    return build()


def control(token: str) -> int:
    """The id of a control token."""
    return 256 + CONTROL.index(token)


@cache
def encode(text: str) -> tuple[int, ...]:
    """Ids of one run of plain text. Control tokens spelled out in it are characters."""
    assert "<|" not in text, "text runs hold no control tokens"
    return tuple(shared().encode(text, add_special_tokens=False).ids)


def decode(ids: list[int]) -> str:
    """The text of `ids`, control tokens left out."""
    return shared().decode(ids, skip_special_tokens=True)


def write(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json."""
    tokenizer = shared()
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(t)): {
            "content": t,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
            "special": t in CONTROL,
        }
        for t in (*CONTROL, *words())
    }
    body = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
