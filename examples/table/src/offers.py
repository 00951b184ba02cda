"""The built-in table: offers of used bicycles that nobody made, with a price by a formula."""

import random

KINDS = {"city": 300.0, "mountain": 600.0, "racing": 900.0, "tandem": 1200.0, "folding": 450.0}
WORDS = {"new tyres": 40.0, "good brakes": 25.0, "rusty chain": -60.0, "carbon frame": 300.0}
ROWS = 4000
NOISE = 20.0  # standard deviation of a price; no model errs less than 0.8 of it on average


def rows(seed: int = 0, count: int = ROWS) -> dict[str, list[str]]:
    """The columns kind, title, age in years, distance in kilometres (some unknown), price."""
    chance = random.Random(seed)
    table: dict[str, list[str]] = {"kind": [], "title": [], "age": [], "distance": [], "price": []}
    for _ in range(count):
        kind = chance.choice([*KINDS])
        words = chance.sample([*WORDS], chance.randint(0, 2))
        age, distance = chance.uniform(0, 15), chance.uniform(0, 20_000)
        price = (KINDS[kind] + sum(WORDS[word] for word in words)) * 0.9**age
        price += 100 - distance / 200 + chance.gauss(0, NOISE)
        table["kind"].append(kind)
        table["title"].append(" and ".join(words) or "as it is")
        table["age"].append(f"{age:.1f}")
        table["distance"].append(f"{distance:.0f}" if chance.random() < 0.9 else "")
        table["price"].append(f"{price:.2f}")
    return table
