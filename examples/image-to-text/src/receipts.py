"""Drawn receipts, so that the example needs no download: delete this file with your own data."""

import random
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageDraw, ImageFont

NAMES = ["NORTH", "SOUTH", "GREEN", "CITY", "OLD", "ROYAL", "CORNER", "RIVER"]
SHOPS = ["BAKERY", "MARKET", "BOOKS", "CAFE", "PHARMACY", "HOTEL", "GARAGE", "FLOWERS"]


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
    """A grey image of 112 × 48 pixels with a line for each field, a little off its place."""
    image = Image.new("L", (112, 48), rng.randint(200, 255))
    for number, text in enumerate(fields.values()):
        place = rng.randint(1, 8), 16 * number + rng.randint(0, 5)
        ImageDraw.Draw(image).text(place, text, rng.randint(0, 60), ImageFont.load_default(10))
    return image
