"""How people ask, in English and Chinese, for each task. Index 0 of every list is the plainest wording.

Words in answers (colours, shapes, captions) follow the language of the question; printed text is answered as printed.
"""

from __future__ import annotations

EN, ZH = "en", "zh"

TEXT = {
    EN: (
        "Read the text.",
        "What is written?",
        "What does it say?",
        "What is the text?",
        "What text is in the picture?",
        "What is written in the picture?",
        "What does the picture say?",
        "Read this.",
        "What is printed here?",
        "Transcribe the text.",
        "What is written in this image?",
        "Read the text in the image.",
        "What is the code?",
        "Extract the text.",
        "What is written here?",
        "What does this say?",
        "What text is in this image?",
        "Read the code.",
        "Read the text in this picture.",
        "What does the sign say?",
        "What does the label say?",
        "OCR this image.",
        "Please read the text.",
        "What is the text in this picture?",
        "What code is printed?",
        "Read all the text in the image.",
        "What is the number?",
        "What word is this?",
    ),
    ZH: (
        "读出文字。",
        "写的是什么？",
        "图中写了什么？",
        "图片里的文字是什么？",
        "识别文字。",
        "图上的文字是什么？",
        "请读出图中的文字。",
        "这张图片写了什么？",
        "提取文字。",
        "识别图片中的文字。",
        "图中的文字是什么？",
        "这是什么字？",
        "上面写着什么？",
        "读出图片里的文字。",
        "编号是什么？",
        "代码是什么？",
        "请识别图片文字。",
        "图片上写的是什么？",
        "标签上写了什么？",
        "牌子上写了什么？",
    ),
}

COLOUR = {
    EN: (
        "What colour is it?",
        "What color is it?",
        "What colour is the {shape}?",
        "What color is the {shape}?",
        "What is the color of the {shape}?",
        "What is the colour?",
        "What colour is this?",
        "What color is this {shape}?",
        "Which color is the {shape}?",
        "What colour are the shapes?",
        "What color are the {shape}s?",
    ),
    ZH: (
        "什么颜色？",
        "这是什么颜色？",
        "{shape}是什么颜色？",
        "图形是什么颜色？",
        "这个{shape}是什么颜色？",
        "图中的{shape}是什么颜色？",
        "它是什么颜色？",
        "颜色是什么？",
    ),
}

INK = {
    EN: (
        "What colour is the text?",
        "What color is the text?",
        "What color are the letters?",
        "What is the color of the text?",
    ),
    ZH: ("文字是什么颜色？", "字是什么颜色？", "图中文字的颜色是什么？"),
}

SHAPE = {
    EN: (
        "What shape is it?",
        "What shape is this?",
        "What is the shape?",
        "What shape is the {colour} one?",
        "What shape is in the picture?",
        "What shapes are these?",
        "Which shape is it?",
        "Name the shape.",
        "What shape is shown?",
        "What shape is in this image?",
    ),
    ZH: (
        "什么形状？",
        "这是什么形状？",
        "图中是什么形状？",
        "{colour}的是什么形状？",
        "它是什么形状？",
        "形状是什么？",
    ),
}

COUNT = {
    EN: (
        "How many shapes are there?",
        "How many?",
        "How many {shape}s are there?",
        "How many {shape}s?",
        "Count the shapes.",
        "Count the {shape}s.",
        "How many {shape}s are in the picture?",
        "How many shapes are in the image?",
        "How many {shape}s can you see?",
        "How many {colour} shapes are there?",
        "How many {colour} {shape}s are there?",
    ),
    ZH: (
        "有几个图形？",
        "有几个？",
        "有几个{shape}？",
        "图中有几个{shape}？",
        "有多少个图形？",
        "图中有多少个{shape}？",
        "数一数{shape}。",
        "有几个{colour}图形？",
        "有几个{colour}{shape}？",
    ),
}

BOXES = {
    EN: (
        "Locate the shapes.",
        "Where are the shapes?",
        "Find the shapes.",
        "Where is the {shape}?",
        "Locate every {shape}.",
        "Detect the shapes and give bbox_2d and label as JSON.",
        "Locate every shape, output its bbox coordinates in JSON format.",
        "Draw boxes around the shapes.",
        "Give the bounding boxes of the shapes.",
        "Where is the {colour} {shape}?",
        "Find the {colour} {shape}.",
        "Locate the {shape}, report bbox coordinates in JSON format.",
        "Detect all objects.",
    ),
    ZH: (
        "框出所有图形。",
        "图形在哪里？",
        "定位所有图形，输出JSON。",
        "{shape}在哪里？",
        "框出{shape}。",
        "找出所有{shape}。",
        "检测图中的图形，输出bbox_2d和label。",
        "{colour}{shape}在哪里？",
        "请框出{colour}{shape}。",
    ),
}

PICK_TEXT = {
    EN: (
        "What is the text of picture {n}?",
        "What is written in the {nth} picture?",
        "What does picture {n} say?",
        "Read the text of the {nth} picture.",
        "What is written in picture {n}?",
        "What is the text in image {n}?",
        "What does the {nth} image say?",
        "Read picture {n}.",
        "Read the text in the {nth} image.",
        "What text is in the {nth} picture?",
        "What is written in image {n}?",
    ),
    ZH: (
        "第{n}张图写了什么？",
        "第{zh}张图片的文字是什么？",
        "读出第{n}张图的文字。",
        "图{n}写了什么？",
        "第{zh}张图写的是什么？",
        "第{zh}张图片里写了什么？",
        "第{n}张图的文字是什么？",
    ),
}

PICK_COLOUR = {
    EN: (
        "What colour is picture {n}?",
        "What color is the shape in picture {n}?",
        "What colour is the shape in the {nth} picture?",
        "What color is the shape in image {n}?",
        "Which color is the shape in the {nth} image?",
    ),
    ZH: (
        "第{n}张图的图形是什么颜色？",
        "第{zh}张图是什么颜色？",
        "图{n}的图形是什么颜色？",
        "第{zh}张图片里的图形是什么颜色？",
    ),
}

PICK_SHAPE = {
    EN: ("What shape is in picture {n}?", "What shape is in the {nth} picture?", "What shape is in image {n}?"),
    ZH: ("第{n}张图是什么形状？", "第{zh}张图片是什么形状？", "图{n}是什么形状？"),
}

EXTRACT = {
    EN: (
        "Give the price and date as JSON.",
        "Extract the price and the date as JSON.",
        "Extract price and date.",
        "What are the price and the date? Answer in JSON.",
        "Return JSON with price and date.",
        "Read the label, output price and date in JSON format.",
    ),
    ZH: (
        "提取价格和日期，输出JSON。",
        "用JSON给出价格和日期。",
        "提取价格和日期。",
        "价格和日期是什么？用JSON回答。",
        "读出标签上的价格和日期，输出JSON。",
    ),
}

PRICE = {
    EN: ("What is the price?", "What does it cost?", "How much is it?"),
    ZH: ("价格是多少？", "多少钱？"),
}
DATE = {
    EN: ("What is the date?", "What date is on the label?", "What date is it?"),
    ZH: ("日期是什么？", "日期是多少？"),
}

CAPTION = {
    EN: (
        "Describe the picture.",
        "Describe this image.",
        "What is in the picture?",
        "What is in this image?",
        "What do you see?",
        "Describe it in one sentence.",
        "What is this?",
        "Describe the image.",
        "Caption this image.",
        "What can you see in this picture?",
        "What does the image show?",
        "Describe this picture in one sentence.",
    ),
    ZH: (
        "描述这张图片。",
        "图中有什么？",
        "这是什么？",
        "图里有什么？",
        "用一句话描述图片。",
        "你看到了什么？",
        "请描述这张图片。",
        "描述图片。",
        "图片里有什么？",
        "这张图片是什么？",
    ),
}

SYSTEM = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You read pictures.",
    "你是一个有用的助手。",
    "请简短回答。",
)

ORDINAL = ("first", "second", "third")
ORDINAL_ZH = ("一", "二", "三")
COLOUR_ZH = {
    "red": "红色",
    "green": "绿色",
    "blue": "蓝色",
    "yellow": "黄色",
    "orange": "橙色",
    "purple": "紫色",
    "pink": "粉色",
    "black": "黑色",
    "white": "白色",
    "gray": "灰色",
}
SHAPE_ZH = {"circle": "圆形", "square": "正方形", "triangle": "三角形", "star": "五角星", "shape": "图形"}
NUMBER = ("No", "One", "Two", "Three", "Four", "Five", "Six")
NUMBER_ZH = ("没有", "一个", "两个", "三个", "四个", "五个", "六个")
NO_TEXT = {EN: "There is no text.", ZH: "没有文字。"}


def colour_word(name: str, language: str) -> str:
    return name if language == EN else COLOUR_ZH[name]


def shape_word(name: str, language: str) -> str:
    return name if language == EN else SHAPE_ZH[name]


def label(colour: str, shape: str, language: str) -> str:
    """The label of a box: "red circle", 红色圆形."""
    return f"{colour} {shape}" if language == EN else COLOUR_ZH[colour] + SHAPE_ZH[shape]


def all_texts() -> list[str]:
    """Every wording, for choosing the vocabulary."""
    groups = (TEXT, COLOUR, INK, SHAPE, COUNT, BOXES, PICK_TEXT, PICK_COLOUR, PICK_SHAPE, EXTRACT, PRICE, DATE, CAPTION)
    return [q for group in groups for language in (EN, ZH) for q in group[language]] + list(SYSTEM)
