"""What Hugging Face's tokenizers say: the judge of this package.

serve       answers one JSON line with one JSON line (see oracle_test.go).
tables DIR  writes the tables in DIR: the classes, as the regex engine of tokenizers has
            them, and the canonical mappings, as its NFC has them. Both are asked about
            each code point; the Unicode version of neither is assumed.
"""
import json
import sys
import time
import unicodedata

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def members(pattern):
    """The code points that a pattern of one character matches."""
    text = "".join(map(chr, SCALARS))
    split = pre_tokenizers.Split(Regex("(?:" + pattern + ")+"), "removed")
    inside = [True] * len(SCALARS)
    for _, (begin, end) in split.pre_tokenize_str(text):
        for i in range(begin, end):
            inside[i] = False
    return {SCALARS[i] for i, yes in enumerate(inside) if yes}


def class_runs():
    """Runs of code points with the same classes, as (length, bits)."""
    classes = [r"\p{L}", r"\p{N}", r"\s", r"\p{M}", r"\p{P}", r"\p{S}", r"[\p{Lu}\p{Lt}]", r"\p{Ll}"]
    sets = [members(c) for c in classes]
    lm_lo = members(r"[\p{Lm}\p{Lo}]")
    assert sets[0] == sets[6] | sets[7] | lm_lo and not lm_lo & (sets[6] | sets[7])
    runs = []
    for c in range(0x110000):
        bits = sum(1 << i for i, s in enumerate(sets) if c in s)
        if runs and runs[-1][1] == bits:
            runs[-1][0] += 1
        else:
            runs.append([1, bits])
    return runs


def combining(nfd):
    """The combining classes that reorder: found by which marks change places."""
    def moves(a, b):
        return a != b and nfd("a" + chr(a) + chr(b)) == "a" + chr(b) + chr(a)

    marks = {}
    plain = [c for c in SCALARS if nfd(chr(c)) == chr(c) and not 0xAC00 <= c <= 0xD7A3]
    some = [c for c in plain if moves(c, 0x0334) or moves(0x0301, c) or moves(0x0345, c)]
    for c in (0x0334, 0x0345):
        assert c in some
    named = {}
    for c in some:
        named.setdefault(unicodedata.combining(chr(c)), c)
    named.pop(0, None)
    for c in some:
        same = [v for v, mark in named.items() if not moves(c, mark) and not moves(mark, c)]
        assert len(same) == 1, (hex(c), same)
        marks[c] = same[0]
    return marks


def mappings():
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    marks = combining(nfd)
    parts = {}
    for c in SCALARS:
        d = nfd(chr(c))
        if d != chr(c) and not 0xAC00 <= c <= 0xD7A3:
            parts[c] = ([ord(x) for x in d], nfc(d) == chr(c))
    return marks, parts


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return out


def tables():
    classes = bytearray()
    for n, bits in class_runs():
        classes += varint(n) + bytes([bits])
    marks, parts = mappings()
    ccc, last = bytearray(), 0
    for c in sorted(marks):
        ccc += varint(c - last) + bytes([marks[c]])
        last = c
    maps, last = bytearray(), 0
    for c in sorted(parts):
        d, composes = parts[c]
        maps += varint(c - last) + bytes([len(d) << 1 | composes])
        for x in d:
            maps += varint(x)
        last = c
    for name, table in ("classes", classes), ("marks", ccc), ("mappings", maps):
        with open("%s/%s" % (sys.argv[2], name), "wb") as f:
            f.write(table)


def serve():
    server = Server()
    for line in sys.stdin:
        q = json.loads(line)
        try:
            a = {"answer": getattr(server, q["do"])(q)}
        except Exception as e:  # noqa: BLE001 - told to whoever asked
            a = {"error": repr(e)}
        sys.stdout.write(json.dumps(a) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    {"serve": serve, "tables": tables}[sys.argv[1]]()
