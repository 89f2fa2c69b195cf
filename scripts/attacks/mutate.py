"""Changes of valid inputs: of bytes, of text, of JSON, and of protobuf messages.

Each function takes a `random.Random` and makes no other choice, so that a seed gives the same input again.
"""

import json
import re

INTEGERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    10**6,
    10**9,
    4 * 10**9,
]
INTEGERS += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
INTEGERS += [-1, -2, -128, -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1, 2**64, 10**30]
FLOATS = [
    "0.0",
    "-0.0",
    "1e-45",
    "1e-38",
    "0.5",
    "1e38",
    "3.5e38",
    "1e300",
    "1e400",
    "-1e400",
    "NaN",
]
FLOATS += ["Infinity", "-Infinity"]
WORDS = [
    "",
    "\0",
    "\x1b[2J",
    "\u202e",
    "\ufeff",
    "\U0010ffff",
    "e\u0301" * 20,
    "a" * 5000,
    "../../x",
    "/",
]
WORDS += ["%s%n", "{{", "{%", "\\", '"', "null", "-0", "𝔘" * 300, "\r\n"]


def truncate(rng, data):
    """A cut at any place, more often near a power of two, the begin or the end."""
    n = len(data)
    places = [
        rng.randrange(n + 1),
        1 << rng.randrange(max(n.bit_length(), 1)),
        n - 1,
        rng.randrange(min(n, 64) + 1),
    ]
    return data[: max(0, min(n, rng.choice(places)))]


def change_bytes(rng, data, others=(), head=512):
    """One to three changes of bytes; `head` is where most of the numbers are that say how long the rest is."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not data:
            data += bytes(rng.randrange(256) for _ in range(8))
        n = len(data)
        # Half of the changes are near the begin.
        at = rng.randrange(min(n, head)) if rng.random() < 0.5 else rng.randrange(n)
        change = rng.randrange(11)
        if change == 0:
            data = bytearray(truncate(rng, data))
        elif change == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif change in (3, 4, 5):
            size = rng.choice([2, 4, 8, 8])
            if rng.random() < 0.7:
                at -= at % size
            number = rng.choice(INTEGERS) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "little")
        elif change == 6:
            del data[at : at + rng.choice([1, 4, 8, 32, n // 4 + 1])]
        elif change == 7:
            part = data[at : at + rng.choice([1, 8, 64, 1024])]
            data[at:at] = part * rng.choice([1, 2, 64])
        elif change == 8:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4, 33])))
        elif change == 9:
            size = rng.choice([4, 16, 256])
            data[at : at + size] = bytes([rng.choice([0, 0xFF])]) * min(size, n - at)
        elif others:
            other = rng.choice(others)
            place = rng.randrange(len(other) + 1)
            data[at:] = other[place : place + (1 << 20)]
    return bytes(data)


def change_text(rng, text, others=()):
    """One to four changes of text that is made of words, numbers and brackets."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        n = len(text)
        at, change = rng.randrange(n + 1), rng.randrange(12)
        words = list(re.finditer(r"[A-Za-z_][A-Za-z_0-9.]*", text[at : at + 4000]))
        numbers = list(re.finditer(r"-?\d+(\.\d+)?", text[at : at + 4000]))
        if change in (0, 1, 2) and numbers:
            match = rng.choice(numbers)
            new = str(rng.choice(INTEGERS)) if rng.random() < 0.75 else rng.choice(FLOATS)
            text = text[: at + match.start()] + new + text[at + match.end() :]
        elif change in (3, 4) and len(words) > 1:
            match, other = rng.choice(words), rng.choice(words)
            text = text[: at + match.start()] + other.group() + text[at + match.end() :]
        elif change == 5:
            text = truncate(rng, text)
        elif change == 6:
            text = text[:at] + text[at + rng.choice([1, 3, 20, 200]) :]
        elif change == 7:
            part = text[at : at + rng.choice([1, 10, 100, 1000])]
            text = text[:at] + part * rng.choice([2, 3, 50]) + text[at:]
        elif change == 8:
            text = text[:at] + rng.choice("[]{}()<>\"',;:=%/-") + text[at:]
        elif change == 9:
            text = (
                text[:at]
                + rng.choice(["[", "(", "{", "<", "[[1,", "tensor<"])
                * rng.choice([10, 1000, 30000])
                + text[at:]
            )
        elif change == 10:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif others:
            other = rng.choice(others)
            text = text[:at] + other[rng.randrange(len(other) + 1) :]
    return text


def _paths(value, path=()):
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from _paths(item, (*path, key))


def _odd_value(rng, old):
    kinds = [None, True, False, {}, [], "", 0, -1, [[]], {"type": "x"}]
    kinds += [rng.choice(INTEGERS), rng.choice(INTEGERS), rng.choice(WORDS), [old], {"a": old}]
    return rng.choice(kinds)


def change_json_value(rng, value, places=None):
    """One to three changes of a parsed JSON value, in place where that can be; `places` are keys to prefer."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        paths = [p for p in _paths(value) if p]
        if places:
            preferred = [p for p in paths if any(part in places for part in p)]
            # Lists of thousands of items are one place among many, not all of them.
            paths = preferred if preferred and rng.random() < 0.8 else paths
        if not paths:
            return _odd_value(rng, value)
        depth = rng.choice(sorted({len(p) for p in paths}))
        path = rng.choice([p for p in paths if len(p) == depth])
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        key, old = path[-1], holder[path[-1]]
        change = rng.randrange(9)
        if change == 0:
            del holder[key]
        elif change == 1 and isinstance(holder, list):
            holder[key:key] = [old] * rng.choice([1, 3, 2000])
        elif change == 1 and isinstance(holder, dict):
            holder[rng.choice(["", "type", "\0", str(key) + "x"])] = holder.pop(key)
        elif change == 2 and isinstance(old, str):
            holder[key] = rng.choice(
                [
                    old + rng.choice(WORDS),
                    old[: len(old) // 2],
                    old * 300,
                    old.upper(),
                    rng.choice(WORDS),
                ]
            )
        elif change in (2, 3) and isinstance(old, (int, float)) and not isinstance(old, bool):
            holder[key] = rng.choice(
                [old + 1, old - 1, -old, old * 2, rng.choice(INTEGERS), rng.choice(INTEGERS)]
            )
        elif change == 4 and isinstance(old, list):
            rng.shuffle(old)
        elif change == 5 and isinstance(holder, dict):
            holder[key] = holder[rng.choice(list(holder))]
        elif change == 6 and isinstance(old, (list, dict)):
            old.clear()
        else:
            holder[key] = _odd_value(rng, old)
    return value


def change_json(rng, text, places=None):
    """JSON text with a change of its values, its text, or both."""
    kind = rng.random()
    if kind < 0.75:
        text = json.dumps(
            change_json_value(rng, json.loads(text), places), ensure_ascii=rng.random() < 0.5
        )
    if kind < 0.65:
        return text
    change = rng.randrange(6)
    numbers = list(re.finditer(r"(?<=[:\[, ])-?\d+(\.\d+)?", text))
    if change == 0 and numbers:
        match = rng.choice(numbers)
        text = text[: match.start()] + rng.choice(FLOATS) + text[match.end() :]
    elif change == 1:
        pairs = list(re.finditer(r'"[^"\\]{0,40}": ?[^,{}\[\]]{1,40}', text))
        if pairs:
            match = rng.choice(pairs)
            text = text[: match.end()] + ", " + match.group() + text[match.end() :]
    elif change == 2:
        at = text.rfind(":", 0, rng.randrange(len(text) + 1)) + 1
        depth = rng.choice([100, 129, 20000, 200000])
        text = (
            text[:at]
            + rng.choice(["[", '{"a":']) * depth
            + "]" * rng.choice([0, depth])
            + text[at:]
        )
    elif change == 3:
        text = text.replace('"', '"' + rng.choice(["\\ud800", "\\u0000", "\\x", "\\u001b[31m"]), 1)
    else:
        text = truncate(rng, text) if change == 4 else change_text(rng, text)
    return text


def _varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _read_varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        n |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return n, at
        if shift > 63:
            raise ValueError("too long")


def _read_message(data):
    """Fields as [number, wire type, value]; raises where it is no message."""
    fields, at = [], 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field 0")
        if wire == 0:
            value, at = _read_varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire == 2:
            size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError("group")
        if at > len(data):
            raise ValueError("end")
        fields.append([number, wire, value])
    return fields


def _write_message(fields):
    out = bytearray()
    for number, wire, value in fields:
        out += _varint(number << 3 | wire)
        out += _varint(value) if wire == 0 else _varint(len(value)) + value if wire == 2 else value
    return bytes(out)


def change_message(rng, data, depth=0):
    """A change of a field somewhere in a protobuf message, with all lengths around it put right."""
    try:
        fields = _read_message(data)
    except (ValueError, IndexError):
        fields = []
    if not fields:
        return change_bytes(rng, data)
    at = rng.randrange(len(fields))
    number, wire, value = fields[at]
    if wire == 2 and value and depth < 40 and rng.random() < 0.9:
        fields[at][2] = change_message(rng, value, depth + 1)
        return _write_message(fields)
    change = rng.randrange(8)
    if change == 0:
        del fields[at]
    elif change == 1:
        fields[at:at] = [fields[at]] * rng.choice([1, 2, 500])
    elif change == 2:
        fields[at] = [rng.randrange(1, 30), wire, value]
    elif change == 3:
        fields[at] = list(rng.choice(fields))
    elif wire == 0:
        fields[at][2] = rng.choice(INTEGERS) % 2**64
    elif wire == 2:
        strings = [
            b"",
            value * 2,
            value[: len(value) // 2],
            change_bytes(rng, value),
            rng.choice(WORDS).encode(),
        ]
        nested = value
        for _ in range(rng.choice([0, 90, 110, 5000])):
            nested = _varint(number << 3 | 2) + _varint(len(nested)) + nested
            if len(nested) > 1 << 20:
                break
        fields[at][2] = rng.choice([*strings, nested])
    else:
        fields[at][2] = (rng.choice(INTEGERS) % 2**64).to_bytes(8, "little")[: len(value)]
    return _write_message(fields)
