"""Drawn receipts, so that the example needs no download: delete this file with your own data."""

import random
from collections.abc import Iterator
from typing import Any

import matplotlib
from PIL import Image, ImageDraw, ImageFont

NAMES = ["NORTH", "SOUTH", "GREEN", "CITY", "OLD", "ROYAL", "CORNER", "RIVER"]
SHOPS = ["BAKERY", "MARKET", "BOOKS", "CAFE", "PHARMACY", "HOTEL", "GARAGE", "FLOWERS"]
FONT = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSansMono.ttf", 12)


def receipts(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Random receipts: an image and the fields company, date and total."""
    rng = random.Random(seed)
    for _ in range(count):
        fields = {
            "company": f"{rng.choice(NAMES)} {rng.choice(SHOPS)}",
            "date": f"{rng.randint(1, 28):02}/{rng.randint(1, 12):02}/{rng.randint(2000, 2029)}",
            "total": f"{rng.uniform(1, 100):.2f}",
        }
        yield {"image": draw(fields, rng), **fields}


def draw(fields: dict[str, str], rng: random.Random) -> Image.Image:
    """A grey image of 128 × 48 pixels with a line for each field, a little off its place."""
    image = Image.new("L", (128, 48), rng.randint(200, 255))
    grey, right, down = rng.randint(0, 60), rng.randint(0, 3), rng.randint(0, 3)
    for line, text in enumerate(fields.values()):
        for column, character in enumerate(text):  # each as wide as the others
            place = 8 * column + right, 16 * line + down
            ImageDraw.Draw(image).text(place, character, grey, FONT)
    return image
