"""Files of checkpoints, arrays and tables in parts, to make ones that are wrong in one place."""

import functools
import gzip
import struct
import zlib

from .mutate import FLOATS, INTEGERS, WORDS

# ---- GGUF ----

STRING, ARRAY, FLOAT32 = 8, 9, 6
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Gguf:
    """Keys as [name, type, value bytes], tensors as [name, dimensions, type, offset], and the data."""

    def __init__(self, data):
        self.at, self.bytes = 8, data
        n_tensors, n_keys = self._number(8), self._number(8)
        self.version, self.keys, self.tensors = 3, [], []
        for _ in range(n_keys):
            name, ty = self._string(), self._number(4)
            begin = self.at
            self._skip(ty)
            self.keys.append([name, ty, data[begin : self.at]])
        for _ in range(n_tensors):
            name = self._string()
            dims = [self._number(8) for _ in range(self._number(4))]
            self.tensors.append([name, dims, self._number(4), self._number(8)])
        self.data = data[-(-self.at // 32) * 32 :]
        self.counts = None

    def _number(self, size):
        self.at += size
        return int.from_bytes(self.bytes[self.at - size : self.at], "little")

    def _string(self):
        n = self._number(8)
        self.at += n
        return self.bytes[self.at - n : self.at]

    def _skip(self, ty):
        if ty == STRING:
            self._string()
        elif ty == ARRAY:
            of, n = self._number(4), self._number(8)
            for _ in range(n):
                self._skip(of)
        else:
            self.at += _SIZES[ty]

    def set(self, name, ty, value):
        """Put a key in the place of the one of this name, or behind all."""
        self.keys = [key for key in self.keys if key[0] != name]
        self.keys.append([name, ty, value])

    def pack(self):
        n_tensors, n_keys = self.counts or (len(self.tensors), len(self.keys))
        out = bytearray(
            b"GGUF" + struct.pack("<IQQ", self.version, n_tensors % 2**64, n_keys % 2**64)
        )
        for name, ty, value in self.keys:
            out += string(name) + struct.pack("<I", ty) + value
        for name, dims, ty, offset in self.tensors:
            out += string(name) + struct.pack("<I", len(dims))
            out += b"".join(struct.pack("<Q", d % 2**64) for d in dims) + struct.pack(
                "<IQ", ty, offset % 2**64
            )
        out += bytes(-len(out) % 32)
        return bytes(out) + self.data


def string(data):
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return struct.pack("<Q", len(data)) + data


def array(ty, items, count=None):
    return struct.pack("<IQ", ty, (len(items) if count is None else count) % 2**64) + b"".join(
        items
    )


def change_gguf(rng, data):
    """One or two changes of keys or tensor records."""
    file = Gguf(data)
    for _ in range(rng.choice([1, 1, 2])):
        change = rng.randrange(10)
        if change < 5 and file.keys:
            at = rng.randrange(len(file.keys))
            name, ty, value = file.keys[at]
            kind = rng.randrange(6)
            if kind == 0:
                del file.keys[at]
            elif kind == 1:
                file.keys.append([name, ty, value])
            elif kind == 2:
                file.keys[at][1] = rng.choice([0, 4, 5, 6, 7, 8, 9, 10, 12, 13, 2**32 - 1])
            elif ty == ARRAY:
                count = rng.choice(INTEGERS) % 2**64
                file.keys[at][2] = (
                    struct.pack("<IQ", rng.choice([ty, *value[:1], 4, 8, 9]), count) + value[12:]
                )
            elif ty == STRING:
                file.keys[at][2] = rng.choice(
                    [string(rng.choice(WORDS)), struct.pack("<Q", rng.choice(INTEGERS) % 2**64)]
                )
            elif ty in (6, 12):
                number = float(rng.choice(FLOATS).replace("Infinity", "inf"))
                file.keys[at][2] = (
                    struct.pack("<d", number)[: _SIZES[ty]]
                    if ty == 12
                    else struct.pack("<I", rng.getrandbits(32))
                )
            else:
                file.keys[at][2] = (rng.choice(INTEGERS) % 2 ** (8 * _SIZES[ty])).to_bytes(
                    _SIZES[ty], "little"
                )
        elif change < 9 and file.tensors:
            at = rng.randrange(len(file.tensors))
            name, dims, ty, offset = file.tensors[at]
            kind = rng.randrange(7)
            if kind == 0:
                del file.tensors[at]
            elif kind == 1:
                file.tensors.append([rng.choice([name, name + b"x", b""]), dims, ty, offset])
            elif kind == 2 and dims:
                dims[rng.randrange(len(dims))] = rng.choice(INTEGERS)
            elif kind == 3:
                file.tensors[at][1] = rng.choice(
                    [[], dims * 2, dims[::-1], [2**32, 2**32], [0], [1] * 600]
                )
            elif kind == 4:
                file.tensors[at][2] = rng.choice([*range(42), 2**31, 2**32 - 1])
            elif kind == 5:
                file.tensors[at][3] = rng.choice([*INTEGERS, offset + 1, offset + 32])
            else:
                other = rng.choice(file.tensors)
                file.tensors[at][3], other[3] = other[3], offset
        else:
            counts = [len(file.tensors), len(file.keys)]
            counts[rng.randrange(2)] = rng.choice(INTEGERS)
            file.counts = counts
            file.version = rng.choice([3, 3, 2, 1, 0, 2**32 - 1])
    return file.pack()


# ---- safetensors ----


def split_safetensors(data):
    n = int.from_bytes(data[:8], "little")
    return data[8 : 8 + n].decode(), data[8 + n :]


def join_safetensors(header, data, n=None):
    header = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", (len(header) if n is None else n) % 2**64) + header + data


# ---- .npy ----


def npy(rng):
    """A file of the right form whose header says anything."""
    kinds = [
        "<f4",
        "<f2",
        "<f8",
        "<i4",
        "|i1",
        "|u1",
        "<i8",
        "|b1",
        ">f4",
        "<c8",
        "<U3",
        "|O",
        "<f16",
        "f4",
        "",
        "<f4\0",
    ]
    dims = [
        str(rng.choice([0, 1, 2, 3, 4, 16, *INTEGERS]))
        for _ in range(rng.choice([0, 1, 1, 2, 3, 40]))
    ]
    shape = rng.choice(
        [
            "(" + ", ".join(dims) + ",)",
            "(" + ", ".join(dims) + ")",
            "()",
            "(1, 3",
            "3",
            "(-1,)",
            "(" * 5000,
        ]
    )
    fields = [
        f"'descr': '{rng.choice(kinds)}'",
        f"'fortran_order': {rng.choice(['False', 'False', 'True', '0'])}",
    ]
    fields.append(f"'shape': {shape}")
    if rng.random() < 0.2:
        rng.choice(
            [fields.pop, lambda: fields.append(fields[0]), lambda: fields.append("'x': []")]
        )()
    header = "{" + ", ".join(fields) + ", }"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    major = rng.choice([1, 1, 1, 2, 3, 0, 255])
    size = len(header) if rng.random() < 0.8 else rng.choice(INTEGERS) % 65536
    head = b"\x93NUMPY" + bytes([major, 0]) + struct.pack("<H" if major < 2 else "<I", size)
    return (
        head
        + header.encode()
        + bytes(rng.randrange(256) for _ in range(rng.choice([0, 4, 12, 64])))
    )


# ---- Parquet ----
# A file is PAR1, pages, the footer in Thrift's compact protocol, its length, PAR1. A struct here is a list of
# (field, type, value).

I32, I64, BINARY, LIST, STRUCT, BOOL = 5, 6, 8, 9, 12, 1


def _varint(n):
    out = bytearray()
    n &= 2**64 - 1
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def _thrift(ty, value):
    if ty in (I32, I64):
        return _varint(value << 1 ^ value >> 63)
    if ty == BINARY:
        value = value.encode() if isinstance(value, str) else value
        return _varint(len(value)) + value
    if ty == LIST:
        of, items = value
        head = (
            bytes([len(items) << 4 | of])
            if len(items) < 15
            else bytes([0xF0 | of]) + _varint(len(items))
        )
        return head + b"".join(_thrift(of, item) for item in items)
    out, last = bytearray(), 0
    for field, kind, item in value:
        code = (1 if item else 2) if kind == BOOL else kind
        out += (
            bytes([field - last << 4 | code])
            if 0 < field - last < 16
            else bytes([code]) + _varint(field << 1)
        )
        last = field
        if kind != BOOL:
            out += _thrift(kind, item)
    return bytes(out) + b"\0"


def _snappy(data):
    """All literals, as the format allows."""
    out = _varint(len(data))
    for at in range(0, len(data), 60):
        part = data[at : at + 60]
        out += bytes([len(part) - 1 << 2]) + part
    return out


def _compress(codec, data):
    if codec == 1:
        return _snappy(data)
    return gzip.compress(data) if codec == 2 else data


def _levels(n):
    """Definition levels: n ones, as one run."""
    run = _varint(n << 1) + b"\x01"
    return struct.pack("<I", len(run)) + run


def _page(texts, codec, dictionary, optional):
    """Pages of a column of texts: [(header, compressed bytes)], and how far the dictionary page goes."""
    plain = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    levels = _levels(len(texts)) if optional else b""
    pages = []
    if dictionary:
        values = _compress(codec, plain)
        head = [(1, I32, len(texts)), (2, I32, 0)]
        pages.append(
            [[(1, I32, 2), (2, I32, len(plain)), (3, I32, len(values)), (7, STRUCT, head)], values]
        )
        width = max(len(texts) - 1, 1).bit_length()
        groups = -(-len(texts) // 8)
        bits = sum(i << width * i for i in range(len(texts)))
        plain = bytes([width]) + _varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")
    body = levels + plain
    values = _compress(codec, body)
    head = [(1, I32, len(texts)), (2, I32, 8 if dictionary else 0), (3, I32, 3), (4, I32, 3)]
    pages.append(
        [[(1, I32, 0), (2, I32, len(body)), (3, I32, len(values)), (5, STRUCT, head)], values]
    )
    return pages


def _mutate_struct(rng, struct_):
    """One change of a field somewhere in a struct."""
    at = rng.randrange(len(struct_))
    field, kind, value = struct_[at]
    if kind == STRUCT and rng.random() < 0.8:
        _mutate_struct(rng, value)
    elif kind == LIST and value[0] == STRUCT and value[1] and rng.random() < 0.8:
        _mutate_struct(rng, rng.choice(value[1]))
    elif rng.random() < 0.15:
        del struct_[at]
        if not struct_:
            struct_.append((1, I32, 0))
    elif kind in (I32, I64):
        struct_[at] = (
            field,
            kind,
            rng.choice([*INTEGERS[:-1], value + 1, value - 1, value * 2]) % 2**63,
        )
        if rng.random() < 0.3:
            struct_[at] = (field, kind, -rng.choice([1, 2, 2**31, 2**62]))
    elif kind == BINARY:
        struct_[at] = (field, kind, rng.choice(WORDS))
    elif kind == LIST:
        items = value[1]
        struct_[at] = (field, kind, (value[0], rng.choice([[], items * 2, items * 500])))
    else:
        struct_[at] = rng.choice([(field, I32, 5), (field, BINARY, b"x")])


@functools.cache
def gzip_of_zeros(mebibytes):
    packed = zlib.compressobj(1, wbits=31)
    return b"".join(packed.compress(bytes(1 << 20)) for _ in range(mebibytes)) + packed.flush()


def parquet(rng, texts, damage):
    """A file with a column `text`; `damage` says whether something in it is wrong."""
    texts = [t.encode("utf-8", "surrogatepass") for t in texts]
    codec, dictionary, optional = rng.choice([0, 0, 1, 2]), rng.random() < 0.5, rng.random() < 0.5
    pages = _page(texts, codec, dictionary, optional)
    where = rng.choice(["page", "values", "footer", "footer", "bytes", "bomb"]) if damage else None
    if where == "bomb":
        # A page of few bytes that says, and unpacks to, very many.
        zeros = gzip_of_zeros(rng.choice([10, 600]))
        codec, pages = 2, pages[-1:]
        pages[0][0][1:3] = [
            (2, I32, rng.choice([len(texts), 2**31 - 1, 600 << 20])),
            (3, I32, len(zeros)),
        ]
        pages[0][1] = zeros
    if where == "page":
        _mutate_struct(rng, rng.choice(pages)[0])
    if where == "values":
        page = rng.choice(pages)
        changed = bytearray(page[1] or b"\0")
        for _ in range(rng.choice([1, 4])):
            at = rng.randrange(min(len(changed), 24))
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        page[1] = bytes(changed)
    out, places = bytearray(b"PAR1"), []
    for header, values in pages:
        places.append(len(out))
        out += _thrift(STRUCT, header) + values
    n, size = len(texts), len(out) - 4
    column = [
        (1, I32, 6),
        (2, LIST, (I32, [0, 3, 8])),
        (3, LIST, (BINARY, ["text"])),
        (4, I32, codec),
        (5, I64, n),
    ]
    column += [(6, I64, size), (7, I64, size), (9, I64, places[-1])]
    if dictionary and where != "bomb":
        column.append((11, I64, places[0]))
    chunk = [(2, I64, 4), (3, STRUCT, column)]
    group = [(1, LIST, (STRUCT, [chunk])), (2, I64, size), (3, I64, n)]
    leaf = [(1, I32, 6), (3, I32, 1 if optional else 0), (4, BINARY, "text"), (6, I32, 0)]
    root = [(4, BINARY, "schema"), (5, I32, 1)]
    footer = [
        (1, I32, 1),
        (2, LIST, (STRUCT, [root, leaf])),
        (3, I64, n),
        (4, LIST, (STRUCT, [group])),
        (6, BINARY, "x"),
    ]
    if where == "footer":
        for _ in range(rng.choice([1, 1, 2])):
            _mutate_struct(rng, footer)
    if damage and rng.random() < 0.03:
        # Groups within groups, each of one child.
        depth = rng.choice([40, 3000])
        nested = [[(3, I32, 0), (4, BINARY, "text"), (5, I32, 1)] for _ in range(depth)]
        footer[1] = (2, LIST, (STRUCT, [root, *nested, leaf]))
    packed = _thrift(STRUCT, footer)
    length = len(packed) if where != "bytes" or rng.random() < 0.7 else rng.choice(INTEGERS) % 2**32
    return bytes(out + packed + struct.pack("<I", length) + b"PAR1")
