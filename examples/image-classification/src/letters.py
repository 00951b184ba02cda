"""Built-in images, letters in the typefaces of matplotlib: delete this file with your own data."""

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, ImageDraw, ImageFont

LETTERS = string.ascii_uppercase + string.digits
FAMILIES = (("Sans", "Oblique"), ("SansMono", "Oblique"), ("Serif", "Italic"))
TYPEFACES = {  # of matplotlib; those of validation and test are never trained on
    "train": [
        f"DejaVu{family}{style}"
        for family, slant in FAMILIES
        for style in ("", "-Bold", f"-{slant}", f"-Bold{slant}")
    ],
    "validation": ["cmb10", "cmr10", "cmss10", "cmtt10"],
    "test": ["STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"],
}


def letters(typefaces: list[str]) -> Iterator[dict[str, Any]]:
    """Each letter and digit in each typeface."""
    for typeface in typefaces:
        for letter in LETTERS:
            yield {"image": draw(letter, typeface), "label": letter}


def draw(letter: str, typeface: str) -> Image.Image:
    """A black letter on white, 32 × 32, in a typeface of matplotlib."""
    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{typeface}.ttf")
    image = Image.new("L", (32, 32), 255)
    font = ImageFont.truetype(str(file), 24)
    ImageDraw.Draw(image).text((16, 16), letter, fill=0, font=font, anchor="mm")
    return image
